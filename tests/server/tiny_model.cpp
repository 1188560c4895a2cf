#include "tests/server/tiny_model.h"

#include <stdexcept>
#include <utility>

namespace kvasir::server::testing {
namespace {

std::string utf8(unsigned code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0U | (code_point >> 6U)),
          static_cast<char>(0x80U | (code_point & 0x3FU))};
}

/// How byte-level vocabularies spell bytes: printable ones as themselves, the others from U+0100
/// on.
std::vector<std::string> byte_spellings() {
  std::vector<std::string> spellings;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    spellings.push_back(utf8(printable ? byte : next++));
  }
  return spellings;
}

text::Vocabulary vocabulary() {
  text::Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "smollm";
  vocabulary.tokens = byte_spellings();
  for (const char* token : {"he", "ll", "hell", "hello", "<|im_start|>", "<|im_end|>"}) {
    vocabulary.tokens.emplace_back(token);
  }
  vocabulary.merges = {"h e", "l l", "he ll", "hell o"};
  vocabulary.types.assign(vocabulary.tokens.size(), text::TokenType::kNormal);
  vocabulary.types[kImStart] = text::TokenType::kControl;
  vocabulary.types[kImEnd] = text::TokenType::kControl;
  vocabulary.eos = kImEnd;
  vocabulary.add_bos = false;
  return vocabulary;
}

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

}  // namespace

const text::Tokenizer& tiny_tokenizer() {
  static const auto tokenizer = value_or_throw(text::Tokenizer::create(vocabulary()));
  return *tokenizer;
}

const text::ChatTemplate& tiny_chat_template() {
  static const auto chat_template = value_or_throw(text::ChatTemplate::create(
      "{% for m in messages %}{% if m.content == 'raise' %}{{ raise_exception('no') }}{% endif %}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
      tiny_tokenizer()));
  return *chat_template;
}

std::vector<TokenId> byte_tokens(std::string_view bytes) {
  std::vector<TokenId> tokens;
  for (const char c : bytes) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

namespace {

PromptLogprobs scores_of(const runtime::BatchChunk& chunk) {
  PromptLogprobs scores;
  scores.sequence = chunk.sequence;
  scores.first_token = chunk.first_position + chunk.first_logits_row + 1;
  scores.num_top = *chunk.request->prompt_logprobs;
  for (std::uint32_t row = chunk.first_logits_row; row < chunk.end_of_scored_rows(); ++row) {
    const std::uint32_t i = chunk.first_position + row + 1;
    const float logprob = -static_cast<float>(i) / 8.0F;
    scores.tokens.push_back({.logprob = logprob, .rank = i});
    for (std::uint32_t k = 0; k < scores.num_top; ++k) {
      scores.top.push_back(
          {(chunk.tokens[i] + k + 1) % kTinyVocabSize, logprob - static_cast<float>(k)});
    }
  }
  return scores;
}

}  // namespace

Result<StepResult> ScriptExecutor::execute(const runtime::Batch& batch) {
  std::unique_lock lock(mutex_);
  held_ = closed_ && allowed_steps_ == 0;
  changed_.wait(lock, [this] { return !closed_ || allowed_steps_ > 0; });
  held_ = false;
  if (allowed_steps_ > 0) --allowed_steps_;
  StepResult result;
  for (const runtime::BatchChunk& chunk : batch.chunks) {
    if (seen_.insert(chunk.sequence).second) requests_.push_back(*chunk.request);
    if (chunk.first_logits_row < chunk.end_of_scored_rows()) {
      result.prompts.push_back(scores_of(chunk));
    }
    if (!chunk.samples()) continue;
    const std::size_t index = chunk.tokens.size() - chunk.num_prompt_tokens;
    SampledToken sampled;
    sampled.sequence = chunk.sequence;
    sampled.all_banned = all_banned_;
    sampled.token = script_[index % script_.size()];
    sampled.logprob = -static_cast<float>(index + 1) / 4.0F;
    for (std::uint32_t i = 0; i < chunk.request->top_logprobs.value_or(0); ++i) {
      sampled.top.push_back(
          {(sampled.token + i) % kTinyVocabSize, sampled.logprob - static_cast<float>(i)});
    }
    result.sampled.push_back(std::move(sampled));
  }
  return result;
}

void ScriptExecutor::set_script(std::vector<TokenId> script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

bool ScriptExecutor::same_slots(BlockId /*a*/, BlockId /*b*/, std::uint32_t /*slots*/) const {
  const std::lock_guard lock(mutex_);
  return !stale_;
}

void ScriptExecutor::make_stale() {
  const std::lock_guard lock(mutex_);
  stale_ = true;
}

void ScriptExecutor::ban_all() {
  const std::lock_guard lock(mutex_);
  all_banned_ = true;
}

void ScriptExecutor::close_gate() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void ScriptExecutor::open_gate() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  changed_.notify_all();
}

void ScriptExecutor::allow_steps(std::uint32_t steps) {
  const std::lock_guard lock(mutex_);
  allowed_steps_ += steps;
  changed_.notify_all();
}

bool ScriptExecutor::is_held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::vector<Request> ScriptExecutor::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

}  // namespace kvasir::server::testing
