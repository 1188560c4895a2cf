#include "text/tokenizer.h"

#include "core/check.h"
#include "text/bridge_call.h"
#include "text/token_bytes.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

namespace kvasir::text {

namespace {

// Tokens that end a turn or a text in the models that use them. Some files name only one of theirs
// as eos, and a chat would then run on. Spellings count only where the vocabulary has them as
// control tokens.
constexpr std::array kEndOfGenerationSpellings = {
    std::string_view("<|im_end|>"),       // ChatML: SmolLM2, Qwen
    std::string_view("<|endoftext|>"),    // GPT-2 and its heirs
    std::string_view("<|eot_id|>"),       // Llama 3, end of turn
    std::string_view("<|eom_id|>"),       // Llama 3, end of message
    std::string_view("<|end_of_text|>"),  // Llama 3, Granite
    std::string_view("<|end|>"),          // Phi 3
    std::string_view("<end_of_turn>"),    // Gemma
};

// Building looks at every way to cut a token in two, so time and memory grow with the square of
// its length; no real vocabulary has a token of a tenth of this.
constexpr std::size_t kMaxTokenBytes = 4096;

Error bridge_error(kvasir_text_status status, const BridgeBytes& error) {
  const bool vocabulary_at_fault = status == kKvasirTextInvalid;
  return {
      vocabulary_at_fault ? ErrorCode::kInvalidModelFile : ErrorCode::kInternal, error.str(), {}};
}

struct TokenizerDeleter {
  void operator()(kvasir_text_tokenizer* tokenizer) const { kvasir_text_tokenizer_free(tokenizer); }
};
using BridgeTokenizer = std::unique_ptr<kvasir_text_tokenizer, TokenizerDeleter>;

std::vector<kvasir_text_view> views_of(const std::vector<std::string>& texts) {
  std::vector<kvasir_text_view> views(texts.size());
  std::transform(texts.begin(), texts.end(), views.begin(), view_of);
  return views;
}

Result<BridgeTokenizer> build(const Vocabulary& vocabulary, const std::vector<TokenType>& types) {
  const std::vector<kvasir_text_view> tokens = views_of(vocabulary.tokens);
  const std::vector<kvasir_text_view> merges = views_of(vocabulary.merges);
  std::vector<std::uint8_t> type_numbers(types.size());
  std::transform(types.begin(), types.end(), type_numbers.begin(),
                 [](TokenType type) { return static_cast<std::uint8_t>(type); });
  kvasir_text_vocabulary raw{};
  raw.model = view_of(vocabulary.model);
  raw.pre_tokenizer = view_of(vocabulary.pre_tokenizer);
  raw.tokens = tokens.data();
  raw.scores = vocabulary.scores.empty() ? nullptr : vocabulary.scores.data();
  raw.types = type_numbers.data();
  raw.num_tokens = tokens.size();
  raw.merges = merges.data();
  raw.num_merges = merges.size();
  raw.add_space_prefix = vocabulary.add_space_prefix.value_or(true);
  kvasir_text_tokenizer* built = nullptr;
  BridgeBytes error;
  const kvasir_text_status status = kvasir_text_tokenizer_create(&raw, &built, error.out());
  if (status != kKvasirTextOk) {
    return tl::unexpected(bridge_error(status, error));
  }
  return BridgeTokenizer(built);
}

/// What can be said about the arrays before the library sees them.
Result<void> check_arrays(const Vocabulary& vocabulary) {
  const std::size_t num_tokens = vocabulary.tokens.size();
  if (num_tokens == 0) {
    return fail(ErrorCode::kInvalidModelFile, "tokenizer.ggml.tokens is missing or empty");
  }
  if (!vocabulary.scores.empty() && vocabulary.scores.size() != num_tokens) {
    return fail(ErrorCode::kInvalidModelFile,
                "tokenizer.ggml.scores has " + std::to_string(vocabulary.scores.size()) +
                    " entries for " + std::to_string(num_tokens) + " tokens");
  }
  if (!vocabulary.types.empty() && vocabulary.types.size() != num_tokens) {
    return fail(ErrorCode::kInvalidModelFile,
                "tokenizer.ggml.token_type has " + std::to_string(vocabulary.types.size()) +
                    " entries for " + std::to_string(num_tokens) + " tokens");
  }
  for (std::size_t id = 0; id < num_tokens; ++id) {
    if (const std::size_t size = vocabulary.tokens[id].size(); size > kMaxTokenBytes) {
      return fail(ErrorCode::kInvalidModelFile,
                  "tokenizer.ggml.tokens[" + std::to_string(id) + "] has " + std::to_string(size) +
                      " bytes, more than the " + std::to_string(kMaxTokenBytes) +
                      " that are allowed");
    }
  }
  using NamedId = std::pair<const char*, std::optional<TokenId>>;
  const std::array<NamedId, 6> named_ids = {
      NamedId{"bos", vocabulary.bos},         NamedId{"eos", vocabulary.eos},
      NamedId{"eot", vocabulary.eot},         NamedId{"eom", vocabulary.eom},
      NamedId{"unknown", vocabulary.unknown}, NamedId{"padding", vocabulary.padding}};
  for (const auto& [name, id] : named_ids) {
    if (id && *id >= num_tokens) {
      return fail(ErrorCode::kInvalidModelFile,
                  std::string("tokenizer.ggml.") + name + "_token_id is " + std::to_string(*id) +
                      ", past the vocabulary of " + std::to_string(num_tokens) + " tokens");
    }
  }
  return {};
}

}  // namespace

struct Tokenizer::Impl {
  BridgeTokenizer bridge;
  TokenBytes bytes;
  std::vector<bool> control;                             // [vocab]
  std::unordered_map<std::string, TokenId> control_ids;  // by spelling
  std::vector<TokenId> end_of_generation;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  bool adds_bos = false;
  bool strips_space = false;  // SPM that puts a space in front of every text

  Result<void> encode_plain(std::string_view text, std::vector<TokenId>& tokens) const;
  Result<void> encode_all(std::span<const TextSegment> segments,
                          std::vector<TokenId>& tokens) const;
};

Result<void> Tokenizer::Impl::encode_plain(std::string_view text,
                                           std::vector<TokenId>& tokens) const {
  kvasir_text_ids ids{nullptr, 0};
  BridgeBytes error;
  const kvasir_text_status status =
      kvasir_text_tokenizer_encode(bridge.get(), view_of(text), &ids, error.out());
  tokens.insert(tokens.end(), ids.data, ids.data + ids.size);
  kvasir_text_ids_free(ids);
  if (status != kKvasirTextOk) {
    const bool text_at_fault = status == kKvasirTextLimit;
    return fail(text_at_fault ? ErrorCode::kInvalidValue : ErrorCode::kInternal, error.str());
  }
  return {};
}

Result<void> Tokenizer::Impl::encode_all(std::span<const TextSegment> segments,
                                         std::vector<TokenId>& tokens) const {
  for (const TextSegment& segment : segments) {
    if (segment.is_control) {
      tokens.push_back(segment.control_token);
    } else if (auto encoded = encode_plain(segment.text, tokens); !encoded) {
      return encoded;
    }
  }
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const Vocabulary& vocabulary) {
  if (auto checked = check_arrays(vocabulary); !checked) {
    return tl::unexpected(checked.error());
  }
  const std::size_t num_tokens = vocabulary.tokens.size();
  const std::vector<TokenType> types = vocabulary.types.empty()
                                           ? std::vector<TokenType>(num_tokens, TokenType::kNormal)
                                           : vocabulary.types;
  auto bridge = build(vocabulary, types);
  if (!bridge) {
    return tl::unexpected(bridge.error());
  }
  const bool spm = vocabulary.model == "llama";
  auto impl = std::make_unique<Impl>();
  impl->bridge = std::move(*bridge);
  impl->bytes = TokenBytes(vocabulary.tokens, types, spm ? Spelling::kSpm : Spelling::kByteLevel);
  impl->control.resize(num_tokens);
  for (std::size_t id = 0; id < num_tokens; ++id) {
    impl->control[id] = types[id] == TokenType::kControl || types[id] == TokenType::kUnknown;
    if (impl->control[id]) {
      impl->control_ids.emplace(vocabulary.tokens[id], static_cast<TokenId>(id));
    }
  }
  impl->bos = vocabulary.bos;
  impl->eos = vocabulary.eos;
  impl->adds_bos = vocabulary.add_bos.value_or(spm) && vocabulary.bos.has_value();
  impl->strips_space = spm && vocabulary.add_space_prefix.value_or(true);
  std::vector<TokenId>& ends = impl->end_of_generation;
  for (const std::optional<TokenId> id : {vocabulary.eos, vocabulary.eot, vocabulary.eom}) {
    if (id) {
      ends.push_back(*id);
    }
  }
  for (const std::string_view spelling : kEndOfGenerationSpellings) {
    if (const auto found = impl->control_ids.find(std::string(spelling));
        found != impl->control_ids.end()) {
      ends.push_back(found->second);
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::vector<TokenId> tokens;
  if (options.add_bos && impl_->adds_bos) {
    tokens.push_back(*impl_->bos);
  }
  Result<void> encoded;
  if (options.parse_special) {
    encoded = split_at_control(text).and_then(
        [&](const auto& segments) { return impl_->encode_all(segments, tokens); });
  } else {
    encoded = impl_->encode_plain(text, tokens);
  }
  return encoded.map([&] { return std::move(tokens); });
}

Result<std::vector<TokenId>> Tokenizer::encode_segments(std::span<const TextSegment> segments,
                                                        bool add_bos) const {
  std::vector<TokenId> tokens;
  const bool has_bos = !segments.empty() && segments.front().is_control && impl_->bos &&
                       segments.front().control_token == *impl_->bos;
  if (add_bos && impl_->adds_bos && !has_bos) {
    tokens.push_back(*impl_->bos);
  }
  return impl_->encode_all(segments, tokens).map([&] { return std::move(tokens); });
}

Result<std::vector<ControlSpelling>> Tokenizer::find_control(std::string_view text) const {
  kvasir_text_matches raw{nullptr, 0};
  BridgeBytes error;
  const kvasir_text_status status =
      kvasir_text_tokenizer_find_control(impl_->bridge.get(), view_of(text), &raw, error.out());
  std::vector<ControlSpelling> found;
  found.reserve(raw.size);
  for (std::size_t i = 0; i < raw.size; ++i) {
    found.push_back({raw.data[i].offset, raw.data[i].size, raw.data[i].id});
  }
  kvasir_text_matches_free(raw);
  if (status != kKvasirTextOk) {
    return fail(ErrorCode::kInternal, error.str());
  }
  return found;
}

Result<std::vector<TextSegment>> Tokenizer::split_at_control(std::string_view text) const {
  auto found = find_control(text);
  if (!found) {
    return tl::unexpected(found.error());
  }
  std::vector<TextSegment> segments;
  std::size_t position = 0;
  const auto add_text = [&](std::size_t end) {
    if (end > position) {
      segments.push_back({false, 0, std::string(text.substr(position, end - position))});
    }
  };
  for (const ControlSpelling& control : *found) {
    add_text(control.offset_bytes);
    segments.push_back({true, control.token, {}});
    position = control.offset_bytes + control.size_bytes;
  }
  add_text(text.size());
  return segments;
}

std::string_view Tokenizer::token_bytes(TokenId token) const { return impl_->bytes.text_of(token); }

std::string_view Tokenizer::token_bytes_with_special(TokenId token) const {
  return impl_->bytes.spelled(token);
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool with_special,
                              bool strip_space_prefix) const {
  std::string text;
  for (const TokenId token : tokens) {
    text += with_special ? token_bytes_with_special(token) : token_bytes(token);
  }
  if (strip_space_prefix && impl_->strips_space && text.starts_with(' ') &&
      !is_control(tokens.front())) {
    text.erase(0, 1);
  }
  return text;
}

bool Tokenizer::is_control(TokenId token) const {
  return token < impl_->control.size() && impl_->control[token];
}
std::size_t Tokenizer::vocabulary_size() const { return impl_->control.size(); }
std::size_t Tokenizer::longest_token_bytes() const { return impl_->bytes.longest(); }
const std::vector<TokenId>& Tokenizer::end_of_generation() const {
  return impl_->end_of_generation;
}
std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::adds_bos() const { return impl_->adds_bos; }

std::optional<TokenId> Tokenizer::control_token(std::string_view spelling) const {
  const auto found = impl_->control_ids.find(std::string(spelling));
  return found == impl_->control_ids.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace kvasir::text
