// Tokenizers against the ids of other implementations: SmolLM2 by `tokenizers`, SPM by
// `sentencepiece`.
#include "tests/support/catch.h"
#include "tests/text/vocabularies.h"
#include "text/incremental_decoder.h"

#include <array>
#include <map>
#include <string>

namespace kvasir::text {
namespace {

using Json = nlohmann::ordered_json;

std::vector<TokenId> ids_of(const Json& row, const char* field) {
  return row.at(field).get<std::vector<TokenId>>();
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, const std::string& text,
                            const EncodeOptions& options) {
  const auto ids = tokenizer.encode(text, options);
  if (!ids) throw std::runtime_error(ids.error().message);
  return *ids;
}

/// How many rows took which answer.
struct Tally {
  std::size_t exact = 0;
  std::size_t alternative = 0;
};

/// A row's ids with and without recognition, with BOS, and the bytes of its ids.
void check_row(const Tokenizer& tokenizer, const Json& row, Tally& tally) {
  const auto text = row.at("text").get<std::string>();
  INFO(row.at("cat") << ": " << row.at("text"));
  const std::vector<TokenId> plain = encode(tokenizer, text, {});
  const bool is_alternative = row.contains("alt") && plain == ids_of(row, "alt");
  if (is_alternative) {
    ++tally.alternative;
  } else {
    CHECK(plain == ids_of(row, "ids"));
    ++tally.exact;
    CHECK(encode(tokenizer, text, {.parse_special = true}) == ids_of(row, "ids_parsed"));
    CHECK(encode(tokenizer, text, {.add_bos = true, .parse_special = true}) ==
          ids_of(row, "ids_bos"));
  }
  const std::string bytes = row.contains("decoded_hex") ? from_hex(row.at("decoded_hex")) : text;
  CHECK(tokenizer.decode(ids_of(row, "ids"), true, true) == bytes);
}

void check_file(const Tokenizer& tokenizer, const std::string& name, std::size_t num_rows) {
  const auto rows = read_json_lines(golden_path(name));
  Tally tally;
  for (const Json& row : rows) check_row(tokenizer, row, tally);
  CHECK(rows.size() == num_rows);
  WARN(name << ": " << tally.exact << " rows exact, " << tally.alternative
            << " by their alternative");
}

TEST_CASE("Tokenizer: every SmolLM2 row gives the reference's ids and bytes", "[text][golden]") {
  const auto model = default_model();
  REQUIRE(model);
  check_file(*build_tokenizer(vocabulary_from_gguf(*model)), "smollm2-tokenizer.jsonl", 237);
}

TEST_CASE("Tokenizer: every Gemma row gives the reference's ids and bytes",
          "[text][golden][slow]") {
  const auto model = gemma_model();
  if (!model) {
    WARN("skipped: KVASIR_TEST_GEMMA names no file");
    return;
  }
  check_file(*build_tokenizer(vocabulary_from_gguf(*model)), "gemma3-tokenizer.jsonl", 123);
}

TEST_CASE("Tokenizer: the small SPM vocabulary gives sentencepiece's ids", "[text][golden]") {
  const auto with_prefix = build_tokenizer(small_spm_vocabulary(true));
  const auto without_prefix = build_tokenizer(small_spm_vocabulary(false));
  const auto rows = read_json_lines(golden_path("spm-rows.jsonl"));
  for (const Json& row : rows) {
    INFO(row.at("text"));
    const auto text = row.at("text").get<std::string>();
    CHECK(encode(*with_prefix, text, {}) == ids_of(row, "with_prefix"));
    CHECK(encode(*without_prefix, text, {}) == ids_of(row, "without_prefix"));
    const bool spells_a_space_as_u2581 = text.find("\xE2\x96\x81") != std::string::npos;
    if (!spells_a_space_as_u2581) {
      CHECK(with_prefix->decode(ids_of(row, "with_prefix"), false, true) == text);
      CHECK(without_prefix->decode(ids_of(row, "without_prefix"), false, true) == text);
    }
  }
  CHECK(rows.size() == 167);
}

}  // namespace
}  // namespace kvasir::text
