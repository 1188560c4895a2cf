// A model of 300 tokens without weights, for the tests of server/: a byte-level vocabulary, a chat
// template, and an executor that says what a script says. Nothing is computed.
#pragma once

#include "core/ids.h"
#include "runtime/executor.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server::testing {

/// Tokens 0..255 are the bytes; then come "he", "ll", "hell" and "hello", ChatML's two control
/// tokens, and padding.
inline constexpr TokenId kHello = 259;
inline constexpr TokenId kImStart = 260;
inline constexpr TokenId kImEnd = 261;  // ends a generation
inline constexpr std::uint32_t kTinyVocabSize = 300;

[[nodiscard]] const text::Tokenizer& tiny_tokenizer();
[[nodiscard]] const text::ChatTemplate& tiny_chat_template();
/// One token for each byte.
[[nodiscard]] std::vector<TokenId> byte_tokens(std::string_view bytes);

/// The i-th generated token of every sequence is the script's i-th, which starts anew at its end.
/// Logprob -(i+1)/4; the best tokens are the sampled one and those after it. A prompt's token i has
/// the logprob -i/8 and the rank i; the best tokens are those after it. A closed gate holds every
/// step.
class ScriptExecutor final : public runtime::Executor {
 public:
  explicit ScriptExecutor(std::vector<TokenId> script) : script_(std::move(script)) {}
  [[nodiscard]] bool same_slots(BlockId, BlockId, std::uint32_t) const override;
  [[nodiscard]] Result<StepResult> execute(const runtime::Batch& batch) override;

  void set_script(std::vector<TokenId> script);
  /// From now on what is computed again is not what it was.
  void make_stale();
  /// From now on no row allows any token.
  void ban_all();
  void close_gate();
  void open_gate();
  /// Lets so many steps through a closed gate.
  void allow_steps(std::uint32_t steps);
  /// A step stands at the closed gate.
  [[nodiscard]] bool is_held() const;
  [[nodiscard]] std::vector<Request> requests() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenId> script_;
  bool all_banned_ = false;
  bool stale_ = false;
  bool closed_ = false;
  bool held_ = false;
  std::uint32_t allowed_steps_ = 0;
  std::vector<Request> requests_;  // of each sequence, in order of their first chunks
  std::set<SequenceId> seen_;
};

}  // namespace kvasir::server::testing
