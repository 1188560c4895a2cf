#include "server/stream_assembler.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvasir::server {
namespace {

bool contains(const std::vector<TokenId>& ascending, TokenId token) {
  return std::binary_search(ascending.begin(), ascending.end(), token);
}

/// Bytes at the end of `text` that are the start of `stop`, but not all of it.
std::size_t open_prefix_bytes(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

StreamAssembler::StreamAssembler(const text::Tokenizer& tokenizer, AssemblyRules rules)
    : tokenizer_(tokenizer),
      rules_(std::move(rules)),
      decoder_(tokenizer, !rules_.skip_special_tokens) {}

bool StreamAssembler::push(const engine::TokenEvent& event) {
  if (stopped()) return false;
  ++counted_tokens_;
  const bool ends = contains(rules_.ending_token_ids, event.token);
  if (rules_.token_ids) token_ids_.push_back(event.token);
  if (rules_.logprobs) logprobs_.push_back(logprob_entry(event, ends));
  // The text of a token that ends the choice is cut like a stop string's.
  if (ends && !rules_.include_stop_str_in_output) return false;
  held_ += decoder_.push(event.token);
  if (counted_tokens_ < rules_.min_tokens) {
    ready_ += std::exchange(held_, {});
    return false;
  }
  if (match_stop()) return true;
  release_harmless();
  return false;
}

bool StreamAssembler::match_stop() {
  std::size_t first_end = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : rules_.stop) {
    const std::size_t start = held_.find(stop);
    if (start == std::string::npos) continue;
    const std::size_t end = start + stop.size();
    if (end < first_end || (end == first_end && stop.size() > found->size())) {
      first_end = end;
      found = &stop;
    }
  }
  if (found == nullptr) return false;
  const std::size_t kept =
      rules_.include_stop_str_in_output ? first_end : first_end - found->size();
  ready_ += std::string_view(held_).substr(0, kept);
  held_.clear();
  stop_string_ = *found;
  return true;
}

void StreamAssembler::release_harmless() {
  std::size_t open = 0;
  for (const std::string& stop : rules_.stop) open = std::max(open, open_prefix_bytes(held_, stop));
  const std::size_t harmless = held_.size() - open;
  ready_ += std::string_view(held_).substr(0, harmless);
  held_.erase(0, harmless);
}

void StreamAssembler::finish(FinishReason reason, std::optional<TokenId> stop_token) {
  if (finish_) return;
  if (stopped()) {
    finish_ = FinishReason::kStop;
    return;
  }
  decoder_.finish();
  ready_ += std::exchange(held_, {});
  finish_ = reason;
  if (stop_token && contains(rules_.own_stop_token_ids, *stop_token)) stop_token_ = stop_token;
}

ChoiceDelta StreamAssembler::take() {
  ChoiceDelta delta;
  delta.text = std::exchange(ready_, {});
  if (finish_) {
    delta.finish = finish_;
    delta.stop_string = stop_string_;
    delta.stop_token = stop_token_;
  }
  if (!delta.text.empty() || delta.finish) {
    delta.token_ids = std::exchange(token_ids_, {});
    delta.logprobs = std::exchange(logprobs_, {});
  }
  return delta;
}

LogprobEntry StreamAssembler::logprob_entry(const engine::TokenEvent& event, bool ends) const {
  LogprobEntry entry{.chosen = token_text(event.token, event.logprob), .top = {}};
  // An end-of-generation token adds nothing to the content, even where control tokens are spelled
  // out.
  if (ends && tokenizer_.is_control(event.token) && !rules_.include_stop_str_in_output)
    entry.chosen.bytes = {};
  entry.top.reserve(event.top.size());
  for (const TokenLogprob& top : event.top) entry.top.push_back(token_text(top.token, top.logprob));
  return entry;
}

TokenText StreamAssembler::token_text(TokenId token, float logprob) const {
  const std::string_view spelling = tokenizer_.token_bytes_with_special(token);
  const std::string_view bytes =
      rules_.skip_special_tokens ? tokenizer_.token_bytes(token) : spelling;
  return {.token = token, .logprob = logprob, .bytes = bytes, .spelling = spelling};
}

}  // namespace kvasir::server
