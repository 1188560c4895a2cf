// The order matters for messages: path, container format, hyperparameters, tensors, vocabulary,
// template.
#include "cli/load_model.h"

#include "cli/startup_error.h"
#include "config/load.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <unistd.h>

namespace kvasir::cli {
namespace {

constexpr const char* kDefaultModelFile = "kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr std::uintmax_t kMaxTemplateBytes = 64U << 10U;

std::string default_model_path(const std::string& origin) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/" + kDefaultModelFile;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    throw StartupError(origin + ": default needs HOME or XDG_CACHE_HOME; name a GGUF file instead");
  }
  return std::string(home) + "/.cache/" + kDefaultModelFile;
}

std::string shown(const NamedPath& file) { return file.origin + ": " + config::quoted(file.path); }

void require_regular_file(const NamedPath& file, const std::string& hint) {
  std::error_code error;
  const auto status = std::filesystem::status(file.path, error);
  const std::string name = shown(file);
  if (!std::filesystem::exists(status)) throw StartupError(name + " does not exist" + hint);
  if (!std::filesystem::is_regular_file(status))
    throw StartupError(name + " is not a regular file");
  if (access(file.path.c_str(), R_OK) != 0) throw StartupError(name + " cannot be read");
}

/// An absent key leaves the field empty; one of another type is the file's fault.
template <typename T>
Result<void> take_list(const runtime::GgufFile& file, const char* key, std::vector<T>& into) {
  const runtime::GgufValue* value = file.find(key);
  if (value == nullptr) return {};
  return std::visit(
      [&](const auto& list) -> Result<void> {
        using List = std::decay_t<decltype(list)>;
        if constexpr (std::is_same_v<T, std::string>
                          ? std::is_same_v<List, std::vector<std::string>>
                          : (std::is_same_v<List, std::vector<double>> ||
                             std::is_same_v<List, std::vector<std::int64_t>> ||
                             std::is_same_v<List, std::vector<std::uint64_t>>)) {
          into.reserve(list.size());
          for (const auto& item : list) into.push_back(static_cast<T>(item));
          return {};
        } else {
          return fail(ErrorCode::kInvalidModelFile,
                      file.path() + ": " + key + " is not a list of the right type");
        }
      },
      *value);
}

Result<void> take_id(const runtime::GgufFile& file, const char* key, std::size_t num_tokens,
                     std::optional<TokenId>& into) {
  if (file.find(key) == nullptr) return {};
  const auto id = file.find_uint(key);
  if (!id || *id >= num_tokens) {
    return fail(
        ErrorCode::kInvalidModelFile,
        file.path() + ": " + key + " is not a token id below " + std::to_string(num_tokens));
  }
  into = static_cast<TokenId>(*id);
  return {};
}

Result<void> check_size(const runtime::GgufFile& file, const char* key, std::size_t size,
                        std::size_t num_tokens) {
  if (size == 0 || size == num_tokens) return {};
  return fail(ErrorCode::kInvalidModelFile, file.path() + ": " + key + " has " +
                                                std::to_string(size) + " entries; expected " +
                                                std::to_string(num_tokens));
}

std::unique_ptr<text::ChatTemplate> load_chat_template(const NamedPath& file,
                                                       const text::RenderLimits& limits,
                                                       LoadedModel& model) {
  if (!file.path.empty()) {
    const std::string source = read_file(file, kMaxTemplateBytes);
    return value_or_throw(text::ChatTemplate::create(source, *model.text.tokenizer, limits),
                          shown(file));
  }
  if (!model.text.chat_template_source) {
    model.chat_template_warning = "the model has no chat template: chat requests are refused";
    return nullptr;
  }
  auto made =
      text::ChatTemplate::create(*model.text.chat_template_source, *model.text.tokenizer, limits);
  if (made) return std::move(*made);
  model.chat_template_warning =
      "the model's chat template is not usable, chat requests are refused: " + made.error().message;
  return nullptr;
}

}  // namespace

NamedPath resolve_model_path(NamedPath option) {
  const bool is_default = option.path == "default";
  if (is_default) option.path = default_model_path(option.origin);
  require_regular_file(option, is_default ? "; deploy/setup.sh fetches it" : "");
  return option;
}

Result<text::Vocabulary> read_vocabulary(const runtime::GgufFile& file) {
  text::Vocabulary v;
  const auto model = file.find_string("tokenizer.ggml.model");
  if (!model) {
    return fail(ErrorCode::kInvalidModelFile, file.path() + ": tokenizer.ggml.model is missing");
  }
  v.model = *model;
  v.pre_tokenizer = file.find_string("tokenizer.ggml.pre").value_or("default");
  std::vector<std::int64_t> types;
  Result<void> ok = take_list(file, "tokenizer.ggml.tokens", v.tokens);
  if (ok && v.tokens.empty()) {
    ok = fail(ErrorCode::kInvalidModelFile,
              file.path() + ": tokenizer.ggml.tokens is missing or empty");
  }
  if (ok) ok = take_list(file, "tokenizer.ggml.scores", v.scores);
  if (ok) ok = take_list(file, "tokenizer.ggml.token_type", types);
  if (ok) ok = take_list(file, "tokenizer.ggml.merges", v.merges);
  const std::size_t count = v.tokens.size();
  if (ok) ok = check_size(file, "tokenizer.ggml.scores", v.scores.size(), count);
  if (ok) ok = check_size(file, "tokenizer.ggml.token_type", types.size(), count);
  if (ok) ok = take_id(file, "tokenizer.ggml.bos_token_id", count, v.bos);
  if (ok) ok = take_id(file, "tokenizer.ggml.eos_token_id", count, v.eos);
  if (ok) ok = take_id(file, "tokenizer.ggml.eot_token_id", count, v.eot);
  if (ok) ok = take_id(file, "tokenizer.ggml.eom_token_id", count, v.eom);
  if (ok) ok = take_id(file, "tokenizer.ggml.unknown_token_id", count, v.unknown);
  if (ok) ok = take_id(file, "tokenizer.ggml.padding_token_id", count, v.padding);
  if (!ok) return tl::unexpected<Error>(ok.error());
  for (const std::int64_t type : types) {
    if (type < 1 || type > 6) {
      return fail(ErrorCode::kInvalidModelFile, file.path() + ": tokenizer.ggml.token_type has " +
                                                    std::to_string(type) + "; expected 1 to 6");
    }
    v.types.push_back(static_cast<text::TokenType>(type));
  }
  v.add_bos = file.find_bool("tokenizer.ggml.add_bos_token");
  v.add_space_prefix = file.find_bool("tokenizer.ggml.add_space_prefix");
  if (const auto source = file.find_string("tokenizer.chat_template")) v.chat_template = *source;
  return v;
}

TextModel load_text_model(const NamedPath& file) {
  TextModel model;
  model.file = value_or_throw(runtime::GgufFile::open(file.path), file.origin);
  text::Vocabulary vocabulary = value_or_throw(read_vocabulary(*model.file), file.origin);
  model.tokenizer = value_or_throw(text::Tokenizer::create(vocabulary), shown(file));
  model.chat_template_source = std::move(vocabulary.chat_template);
  return model;
}

std::unique_ptr<LoadedModel> load_model(const NamedPath& file, const NamedPath& chat_template,
                                        const text::RenderLimits& limits) {
  const std::string& origin = file.origin;
  auto model = std::make_unique<LoadedModel>();
  model->text.file = value_or_throw(runtime::GgufFile::open(file.path), origin);
  model->config = value_or_throw(runtime::read_model_config(*model->text.file), origin);
  model->weights = value_or_throw(runtime::read_weights(*model->text.file, model->config), origin);
  text::Vocabulary vocabulary = value_or_throw(read_vocabulary(*model->text.file), origin);
  if (vocabulary.tokens.size() > model->config.vocab_size) {
    throw StartupError(
        shown(file) + ": tokenizer.ggml.tokens has " + std::to_string(vocabulary.tokens.size()) +
        " entries, more than the output head's " + std::to_string(model->config.vocab_size));
  }
  model->text.tokenizer = value_or_throw(text::Tokenizer::create(vocabulary), shown(file));
  model->text.chat_template_source = std::move(vocabulary.chat_template);
  model->chat_template = load_chat_template(chat_template, limits, *model);
  return model;
}

std::string read_file(const NamedPath& file, std::uintmax_t max_bytes) {
  require_regular_file(file, "");
  std::error_code error;
  if (std::filesystem::file_size(file.path, error) > max_bytes || error) {
    throw StartupError(shown(file) + " is larger than " + std::to_string(max_bytes) + " bytes");
  }
  std::ifstream in(file.path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) throw StartupError(shown(file) + " cannot be read");
  return text;
}

}  // namespace kvasir::cli
