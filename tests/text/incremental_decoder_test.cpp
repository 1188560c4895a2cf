#include "text/incremental_decoder.h"

#include "tests/support/catch.h"
#include "tests/text/vocabularies.h"

#include <array>
#include <random>
#include <string>
#include <vector>

namespace kvasir::text {
namespace {

/// A strict validator, written from the table of well-formed byte sequences (Unicode 15, table
/// 3-7).
bool is_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto within = [](unsigned value, unsigned low, unsigned high) {
    return value >= low && value <= high;
  };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned a = byte(i), b = byte(i + 1), c = byte(i + 2), d = byte(i + 3);
    if (a < 0x80) {
      i += 1;
    } else if (within(a, 0xC2, 0xDF) && within(b, 0x80, 0xBF)) {
      i += 2;
    } else if (within(a, 0xE0, 0xEF) &&
               within(b, a == 0xE0 ? 0xA0 : 0x80, a == 0xED ? 0x9F : 0xBF) &&
               within(c, 0x80, 0xBF)) {
      i += 3;
    } else if (within(a, 0xF0, 0xF4) &&
               within(b, a == 0xF0 ? 0x90 : 0x80, a == 0xF4 ? 0x8F : 0xBF) &&
               within(c, 0x80, 0xBF) && within(d, 0x80, 0xBF)) {
      i += 4;
    } else {
      return false;
    }
  }
  return true;
}

/// Tokens of single bytes: token 4 + n of the tiny vocabulary is byte n.
std::vector<TokenId> byte_tokens(std::string_view bytes) {
  std::vector<TokenId> tokens;
  for (const char byte : bytes) tokens.push_back(4U + static_cast<unsigned char>(byte));
  return tokens;
}

/// All pieces joined; each must be UTF-8 by itself.
std::string joined_pieces(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  IncrementalDecoder decoder(tokenizer, true);
  std::string joined;
  for (const TokenId token : tokens) {
    const std::string piece = decoder.push(token);
    if (!is_utf8(piece)) FAIL_CHECK("a piece is not UTF-8");
    joined += piece;
  }
  decoder.finish();
  CHECK(decoder.pending().empty());
  return joined;
}

std::string decoded_bytes(const std::string& bytes) {
  static const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  return joined_pieces(*tokenizer, byte_tokens(bytes));
}

TEST_CASE("IncrementalDecoder: a character waits until it is whole", "[text]") {
  const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  IncrementalDecoder decoder(*tokenizer);
  const auto tokens = byte_tokens("\xF0\x9F\x99\x82!");
  CHECK(decoder.push(tokens[0]).empty());
  CHECK(decoder.push(tokens[1]).empty());
  CHECK(decoder.push(tokens[2]).empty());
  CHECK(decoder.pending() == "\xF0\x9F\x99");
  CHECK(decoder.push(tokens[3]) == "\xF0\x9F\x99\x82");
  CHECK(decoder.push(tokens[4]) == "!");
}

TEST_CASE("IncrementalDecoder: control tokens are silent unless asked for", "[text]") {
  const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  CHECK(IncrementalDecoder(*tokenizer).push(2).empty());
  CHECK(IncrementalDecoder(*tokenizer, true).push(2) == "<|im_end|>");
  CHECK(IncrementalDecoder(*tokenizer).push(1'000'000).empty());
}

TEST_CASE("IncrementalDecoder: each maximal ill-formed part becomes one replacement character",
          "[text]") {
  const std::string r = "\xEF\xBF\xBD";
  // The examples of Unicode 15, section 3.9, tables 3-8 to 3-11.
  CHECK(decoded_bytes("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") ==
        r + r + r + r + r + r + r + r + "A");
  CHECK(decoded_bytes("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") ==
        r + r + r + r + r + r + r + r + "A");
  CHECK(decoded_bytes("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") ==
        r + r + r + r + r + "A" + r + r + "B");
  CHECK(decoded_bytes("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == r + r + r + r + "A");
}

TEST_CASE("IncrementalDecoder: a character cut by the end is dropped", "[text]") {
  CHECK(decoded_bytes("ok\xE2\x82") == "ok");
  CHECK(decoded_bytes("ok\xF0\x9F\x99") == "ok");
}

TEST_CASE("IncrementalDecoder: random bytes give UTF-8 pieces, and valid text comes back as it is",
          "[text]") {
  std::mt19937 random(20260301);
  // Bytes near the borders of the table, so that every branch is met.
  constexpr std::array<unsigned char, 16> kBytes = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                                    0xC1, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5};
  const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    const std::size_t size = 1 + random() % 24;
    while (bytes.size() < size)
      bytes.push_back(static_cast<char>(kBytes[random() % kBytes.size()]));
    const std::string one_by_one = joined_pieces(*tokenizer, byte_tokens(bytes));
    CHECK(is_utf8(one_by_one));
    if (is_utf8(bytes)) CHECK(one_by_one == bytes);
  }
}

/// Every golden text comes back whole, token by token and byte by byte.
void check_rows(const Tokenizer& tokenizer, const std::string& rows_name, const char* field,
                std::size_t num_rows) {
  const auto bytes_tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  std::size_t seen = 0;
  for (const auto& row : read_json_lines(golden_path(rows_name))) {
    INFO(row.at("text"));
    const auto ids = row.at(field).get<std::vector<TokenId>>();
    const std::string whole = tokenizer.decode(ids, true, false);
    const std::string joined = joined_pieces(tokenizer, ids);
    CHECK(joined == joined_pieces(*bytes_tokenizer, byte_tokens(whole)));
    if (is_utf8(whole)) CHECK(joined == whole);
    ++seen;
  }
  CHECK(seen == num_rows);
}

TEST_CASE("IncrementalDecoder: joined pieces equal the whole for every golden row",
          "[text][golden]") {
  check_rows(*build_tokenizer(small_spm_vocabulary(true)), "spm-rows.jsonl", "with_prefix", 167);
  const auto model = default_model();
  REQUIRE(model);
  check_rows(*build_tokenizer(vocabulary_from_gguf(*model)), "smollm2-tokenizer.jsonl",
             "ids_parsed", 237);
}

}  // namespace
}  // namespace kvasir::text
