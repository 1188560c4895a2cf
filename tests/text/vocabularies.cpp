#include "tests/text/vocabularies.h"

#include "runtime/model/gguf_reader.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace kvasir::text {

namespace {

std::optional<std::filesystem::path> existing(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? std::optional(path) : std::nullopt;
}

std::filesystem::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return cache;
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "" : home) / ".cache";
}

template <typename T>
const T* find_array(const runtime::GgufFile& file, const std::string& key) {
  const runtime::GgufValue* value = file.find(key);
  return value == nullptr ? nullptr : std::get_if<T>(value);
}

std::optional<TokenId> find_id(const runtime::GgufFile& file, const std::string& key) {
  const auto value = file.find_uint("tokenizer.ggml." + key + "_token_id");
  return value ? std::optional(static_cast<TokenId>(*value)) : std::nullopt;
}

/// token_type is a signed array in most files and an unsigned one in some.
std::vector<TokenType> find_types(const runtime::GgufFile& file) {
  std::vector<TokenType> types;
  const std::string key = "tokenizer.ggml.token_type";
  if (const auto* numbers = find_array<std::vector<std::int64_t>>(file, key)) {
    for (const std::int64_t number : *numbers) types.push_back(static_cast<TokenType>(number));
  } else if (const auto* counts = find_array<std::vector<std::uint64_t>>(file, key)) {
    for (const std::uint64_t number : *counts) types.push_back(static_cast<TokenType>(number));
  }
  return types;
}

/// UTF-8 of a code point below U+0800.
std::string letter(unsigned code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0U | (code_point >> 6U)),
          static_cast<char>(0x80U | (code_point & 0x3FU))};
}

}  // namespace

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(KVASIR_SOURCE_DIR) / "tests" / "golden" / "text" / name;
}

std::vector<nlohmann::ordered_json> read_json_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  std::vector<nlohmann::ordered_json> rows;
  for (std::string line; std::getline(file, line);)
    rows.push_back(nlohmann::ordered_json::parse(line));
  return rows;
}

nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return nlohmann::ordered_json::parse(file);
}

std::optional<std::filesystem::path> default_model() {
  if (const char* path = std::getenv("KVASIR_TEST_MODEL")) return path;
  return existing(cache_folder() / "kvasir" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf");
}

std::optional<std::filesystem::path> gemma_model() {
  const char* path = std::getenv("KVASIR_TEST_GEMMA");
  return path == nullptr ? std::nullopt : std::optional<std::filesystem::path>(path);
}

Vocabulary vocabulary_from_gguf(const std::filesystem::path& path) {
  const auto opened = runtime::GgufFile::open(path.string());
  if (!opened) throw std::runtime_error(opened.error().message);
  const runtime::GgufFile& file = **opened;
  Vocabulary vocabulary;
  vocabulary.model = file.find_string("tokenizer.ggml.model").value_or("");
  vocabulary.pre_tokenizer = file.find_string("tokenizer.ggml.pre").value_or("");
  if (const auto* tokens = find_array<std::vector<std::string>>(file, "tokenizer.ggml.tokens")) {
    vocabulary.tokens = *tokens;
  }
  if (const auto* merges = find_array<std::vector<std::string>>(file, "tokenizer.ggml.merges")) {
    vocabulary.merges = *merges;
  }
  if (const auto* scores = find_array<std::vector<double>>(file, "tokenizer.ggml.scores")) {
    for (const double score : *scores) vocabulary.scores.push_back(static_cast<float>(score));
  }
  vocabulary.types = find_types(file);
  vocabulary.bos = find_id(file, "bos");
  vocabulary.eos = find_id(file, "eos");
  vocabulary.eot = find_id(file, "eot");
  vocabulary.eom = find_id(file, "eom");
  vocabulary.unknown = find_id(file, "unknown");
  vocabulary.padding = find_id(file, "padding");
  vocabulary.add_bos = file.find_bool("tokenizer.ggml.add_bos_token");
  vocabulary.add_space_prefix = file.find_bool("tokenizer.ggml.add_space_prefix");
  if (const auto source = file.find_string("tokenizer.chat_template"))
    vocabulary.chat_template = std::string(*source);
  return vocabulary;
}

Vocabulary small_spm_vocabulary(bool add_space_prefix) {
  const auto stored = read_json(golden_path("spm-vocabulary.json"));
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = stored.at("tokens").get<std::vector<std::string>>();
  vocabulary.scores = stored.at("scores").get<std::vector<float>>();
  for (const int number : stored.at("types"))
    vocabulary.types.push_back(static_cast<TokenType>(number));
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.add_space_prefix = add_space_prefix;
  return vocabulary;
}

Vocabulary tiny_byte_level_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "smollm";
  vocabulary.tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"};
  vocabulary.types = {TokenType::kControl, TokenType::kControl, TokenType::kControl,
                      TokenType::kUserDefined};
  // GPT-2's letters: the bytes that do not print in Latin-1 follow from U+0100 on.
  unsigned next_letter = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    vocabulary.tokens.push_back(letter(prints ? byte : next_letter++));
  }
  const std::string space = letter(0x120);
  vocabulary.merges = {"h e", "l l", "he ll", "hell o", space + " w", "o r"};
  for (const std::string& merged : {std::string("he"), std::string("ll"), std::string("hell"),
                                    std::string("hello"), space + "w", std::string("or")}) {
    vocabulary.tokens.push_back(merged);
  }
  vocabulary.types.resize(vocabulary.tokens.size(), TokenType::kNormal);
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  return vocabulary;
}

std::unique_ptr<Tokenizer> build_tokenizer(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::create(vocabulary);
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

}  // namespace kvasir::text
