#include "text/tokenizer.h"

#include "tests/support/catch.h"
#include "tests/text/vocabularies.h"

#include <limits>
#include <string>
#include <vector>

namespace kvasir::text {
namespace {

using Ids = std::vector<TokenId>;

Ids encode(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  const auto ids = tokenizer.encode(text, options);
  if (!ids) throw std::runtime_error(ids.error().message);
  return *ids;
}

/// The pieces of a text, each token's bytes, joined by '|'.
std::string pieces(const Tokenizer& tokenizer, std::string_view text) {
  std::string joined;
  for (const TokenId id : encode(tokenizer, text)) {
    if (!joined.empty()) joined += '|';
    joined += tokenizer.token_bytes_with_special(id);
  }
  return joined;
}

Vocabulary with_pre_tokenizer(const std::string& name) {
  Vocabulary vocabulary = tiny_byte_level_vocabulary();
  vocabulary.pre_tokenizer = name;
  return vocabulary;
}

/// Adds a merge of two tokens spelled in GPT-2's letters.
void add_merge(Vocabulary& vocabulary, const std::string& left, const std::string& right) {
  std::string merge = left;
  merge += ' ';
  merge += right;
  vocabulary.merges.push_back(merge);
  vocabulary.tokens.push_back(left + right);
  vocabulary.types.push_back(TokenType::kNormal);
}

TEST_CASE("Tokenizer: merges are applied within words and control tokens only when asked for",
          "[text]") {
  const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  CHECK(pieces(*tokenizer, "hello world") == "hello| w|or|l|d");
  CHECK(encode(*tokenizer, "<|im_end|>", {.parse_special = true}) == Ids{2});
  CHECK(encode(*tokenizer, "<|im_end|>").size() == 10);
  CHECK(encode(*tokenizer, "a<think>b").at(1) == 3);
  CHECK(encode(*tokenizer, "").empty());
}

TEST_CASE("Tokenizer: BOS is added where the model wants it, once", "[text]") {
  Vocabulary vocabulary = tiny_byte_level_vocabulary();
  CHECK(encode(*build_tokenizer(vocabulary), "h", {.add_bos = true}).front() != 1);
  vocabulary.add_bos = true;
  const auto tokenizer = build_tokenizer(vocabulary);
  CHECK(tokenizer->adds_bos());
  CHECK(encode(*tokenizer, "", {.add_bos = true}) == Ids{1});
  CHECK(encode(*tokenizer, "", {}).empty());
  const std::vector<TextSegment> starts_with_bos = {{true, 1, {}}, {false, 0, "he"}};
  CHECK(tokenizer->encode_segments(starts_with_bos, true)->front() == 1);
  CHECK(tokenizer->encode_segments(starts_with_bos, true)->size() == 2);
  const std::vector<TextSegment> plain = {{false, 0, "he"}};
  CHECK(tokenizer->encode_segments(plain, true)->size() == 2);
  CHECK(tokenizer->encode_segments(plain, false)->size() == 1);
  CHECK(build_tokenizer(small_spm_vocabulary(true))->adds_bos());
}

TEST_CASE("Tokenizer: data segments are never read for control tokens", "[text]") {
  const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  const std::vector<TextSegment> segments = {
      {true, 1, {}}, {false, 0, "<|im_end|>"}, {true, 2, {}}};
  const auto ids = tokenizer->encode_segments(segments, false);
  REQUIRE(ids);
  CHECK(ids->size() == 12);
  CHECK(ids->front() == 1);
  CHECK(ids->back() == 2);
}

TEST_CASE("Tokenizer: named pre-tokenizers cut digits, contractions and spaces in their own way",
          "[text]") {
  const auto pieces_of = [](const std::string& name, std::string_view text) {
    Vocabulary vocabulary = with_pre_tokenizer(name);
    add_merge(vocabulary, "1", "2");
    add_merge(vocabulary, "12", "3");
    add_merge(vocabulary, "123", "4");
    add_merge(vocabulary, "'", "S");
    add_merge(vocabulary, "!", "\xC4\x8A");  // the letter of a newline
    return pieces(*build_tokenizer(vocabulary), text);
  };
  CHECK(pieces_of("gpt-2", "1234") == "1234");
  CHECK(pieces_of("default", "1234") == "1234");
  CHECK(pieces_of("smollm", "1234") == "1|2|3|4");
  CHECK(pieces_of("qwen2", "1234") == "1|2|3|4");
  CHECK(pieces_of("llama-bpe", "1234") == "123|4");
  CHECK(pieces_of("gpt-2", "'S") == "'|S");
  CHECK(pieces_of("llama-bpe", "'S") == "'S");
  CHECK(pieces_of("gpt-2", "!\n") == "!|\n");
  CHECK(pieces_of("qwen2", "!\n") == "!\n");
}

TEST_CASE("Tokenizer: Llama 3 takes a word that is a token whole, others only what merges reach",
          "[text]") {
  Vocabulary vocabulary = with_pre_tokenizer("llama-bpe");
  vocabulary.tokens.push_back("xyz");  // no merge makes it
  vocabulary.types.push_back(TokenType::kNormal);
  CHECK(pieces(*build_tokenizer(vocabulary), "xyz") == "xyz");
  vocabulary.pre_tokenizer = std::string("qwen2");
  CHECK(pieces(*build_tokenizer(vocabulary), "xyz") == "x|y|z");
}

TEST_CASE("Tokenizer: Qwen 2 composes characters first", "[text]") {
  const auto tokenizer = build_tokenizer(with_pre_tokenizer("qwen2"));
  CHECK(tokenizer->decode(encode(*tokenizer, "e\xCC\x81"), false, false) == "\xC3\xA9");
}

TEST_CASE("Tokenizer: token bytes are exact where tokens are not characters", "[text]") {
  const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  std::string every_byte;
  for (TokenId id = 4; id < 4 + 256; ++id) every_byte += tokenizer->token_bytes(id);
  REQUIRE(every_byte.size() == 256);
  for (std::size_t byte = 0; byte < 256; ++byte)
    CHECK(static_cast<unsigned char>(every_byte[byte]) == byte);
  CHECK(tokenizer->token_bytes(2).empty());
  CHECK(tokenizer->token_bytes_with_special(2) == "<|im_end|>");
  CHECK(tokenizer->token_bytes(3) == "<think>");
  CHECK(tokenizer->token_bytes(static_cast<TokenId>(tokenizer->vocabulary_size())).empty());
  CHECK(tokenizer->longest_token_bytes() == 13);
}

TEST_CASE("Tokenizer: SPM adds its space to each stretch and decoding keeps only the first one out",
          "[text]") {
  const auto tokenizer = build_tokenizer(small_spm_vocabulary(true));
  const Ids ids = encode(*tokenizer, "the<s>the", {.parse_special = true});
  const Ids the = encode(*tokenizer, "the");
  Ids expected = the;
  expected.push_back(1);
  expected.insert(expected.end(), the.begin(), the.end());
  CHECK(ids == expected);
  CHECK(tokenizer->decode(ids, true, true) == "the<s> the");
  CHECK(tokenizer->decode(ids, false, false) == " the the");
  CHECK(tokenizer->decode(Ids{}, false, true).empty());
}

TEST_CASE("Tokenizer: generation ends at the file's ids and at the known spellings", "[text]") {
  Vocabulary vocabulary = tiny_byte_level_vocabulary();
  CHECK(build_tokenizer(vocabulary)->end_of_generation() == Ids{0, 2});
  vocabulary.eot = 5;
  vocabulary.eom = 4;
  CHECK(build_tokenizer(vocabulary)->end_of_generation() == Ids{0, 2, 4, 5});
  vocabulary.types[0] = TokenType::kNormal;
  CHECK(build_tokenizer(vocabulary)->end_of_generation() == Ids{2, 4, 5});
  CHECK(build_tokenizer(vocabulary)->control_token("<|im_start|>") == TokenId{1});
  CHECK_FALSE(build_tokenizer(vocabulary)->control_token("<|im_start"));
}

/// A vocabulary that cannot be used is refused with a message that has `part` in it.
void check_refused(const Vocabulary& vocabulary, const std::string& part) {
  const auto tokenizer = Tokenizer::create(vocabulary);
  REQUIRE_FALSE(tokenizer);
  INFO(tokenizer.error().message);
  CHECK(tokenizer.error().code == ErrorCode::kInvalidModelFile);
  CHECK(tokenizer.error().message.find(part) != std::string::npos);
}

TEST_CASE("Tokenizer: vocabularies that cannot be used are refused by name", "[text]") {
  check_refused(with_pre_tokenizer("tekken-9000"), "tekken-9000");
  const auto refused = [](void (*damage)(Vocabulary&), const std::string& part) {
    Vocabulary vocabulary = tiny_byte_level_vocabulary();
    damage(vocabulary);
    check_refused(vocabulary, part);
  };
  refused([](Vocabulary& v) { v.model = std::string("t5"); }, "'t5'");
  refused([](Vocabulary& v) { v.tokens.clear(); }, "tokenizer.ggml.tokens");
  refused([](Vocabulary& v) { v.types.pop_back(); }, "token_type");
  refused([](Vocabulary& v) { v.scores = {1.0F}; }, "scores");
  refused([](Vocabulary& v) { v.merges.clear(); }, "merges");
  refused([](Vocabulary& v) { v.merges.emplace_back("nospace"); }, "merges[6]");
  refused([](Vocabulary& v) { v.merges.emplace_back("no such"); }, "merges");
  refused([](Vocabulary& v) { v.tokens[9] = std::string("\xFF"); }, "token 9");
  refused([](Vocabulary& v) { v.eos = 100'000; }, "eos_token_id");
  refused([](Vocabulary& v) { v.tokens[2] = std::string(4097, 'x'); }, "tokens[2] has 4097 bytes");
  Vocabulary longest = tiny_byte_level_vocabulary();
  longest.tokens[2] = std::string(4096, 'x');
  CHECK(build_tokenizer(longest)->longest_token_bytes() == 4096);
  Vocabulary spm = small_spm_vocabulary(true);
  spm.scores.clear();
  check_refused(spm, "scores");
  spm = small_spm_vocabulary(true);
  spm.scores[300] = std::numeric_limits<float>::quiet_NaN();
  check_refused(spm, "scores[300]");
}

TEST_CASE("Tokenizer: text that is not UTF-8 is an error, not a crash", "[text]") {
  const auto tokenizer = build_tokenizer(tiny_byte_level_vocabulary());
  const auto ids = tokenizer->encode("a\xFFz", {});
  REQUIRE_FALSE(ids);
  CHECK(ids.error().code == ErrorCode::kInternal);
  CHECK_FALSE(tokenizer->encode("a\xFFz", {.parse_special = true}));
}

TEST_CASE(
    "Tokenizer: white space that the word patterns cannot walk is refused, shorter is cut right",
    "[text]") {
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    INFO(name);
    Vocabulary vocabulary = with_pre_tokenizer(name);
    add_merge(vocabulary, "x", "!");  // happens only where the two are not cut apart
    const auto tokenizer = build_tokenizer(vocabulary);
    const Ids words = encode(*tokenizer, " x!");
    const std::string longest(500'000 - 1, ' ');
    const Ids ids = encode(*tokenizer, longest + " x!");
    REQUIRE(ids.size() > words.size());
    CHECK(Ids(ids.end() - static_cast<std::ptrdiff_t>(words.size()), ids.end()) == words);
    const auto over = tokenizer->encode(longest + "\t\n x!", {});
    REQUIRE_FALSE(over);
    CHECK(over.error().code == ErrorCode::kInvalidValue);
    CHECK(over.error().message.find("500000 white-space characters") != std::string::npos);
    CHECK(tokenizer->encode(longest + "x" + longest, {}));
  }
  const auto spm = build_tokenizer(small_spm_vocabulary(false));
  CHECK(spm->encode(std::string(500'001, ' '), {}));
}

TEST_CASE("Tokenizer: a long word without spaces is merged whole", "[text]") {
  const auto tokenizer = build_tokenizer(small_spm_vocabulary(false));
  const std::string text(200'000, 'e');
  CHECK(tokenizer->decode(encode(*tokenizer, text), false, false) == text);
  const std::string spaces(200'000, ' ');
  const auto bpe = build_tokenizer(tiny_byte_level_vocabulary());
  CHECK(bpe->decode(encode(*bpe, spaces), false, false) == spaces);
}

}  // namespace
}  // namespace kvasir::text
