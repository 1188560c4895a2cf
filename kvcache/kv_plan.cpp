// Closed forms of the sums; see the header for what they count. All of them are differences of sums
// from 0, made in 128 bits and cut to 64 at the end.
#include "kvcache/kv_plan.h"

#include "core/check.h"

#include <algorithm>
#include <limits>

namespace kvasir::kvcache {
namespace {

__extension__ using Wide = unsigned __int128;

std::uint64_t saturated(Wide sum) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(std::min<Wide>(sum, kMost));
}

void check_counted(std::uint64_t first, std::uint64_t second) {
  KVASIR_CHECK(first <= kMaxCountedTokens, first);
  KVASIR_CHECK(second <= kMaxCountedTokens - first, first << " + " << second);
}

/// 1 + 2 + ... + count.
Wide triangle(Wide count) { return count * (count + 1) / 2; }

/// The first `count` of these triangles, summed.
Wide pyramid(Wide count) { return count * (count + 1) * (count + 2) / 6; }

/// Positions past the window, whose queries see W keys and no more.
Wide past_window(Wide tokens, std::uint32_t window_tokens) {
  return window_tokens == 0 || tokens <= window_tokens ? 0 : tokens - window_tokens;
}

/// Scores of the first `tokens` tokens: a triangle up to the window, then W a token.
Wide scores_from_start(Wide tokens, std::uint32_t window_tokens) {
  const Wide past = past_window(tokens, window_tokens);
  return triangle(tokens - past) + past * window_tokens;
}

/// scores_from_start(1) + ... + scores_from_start(tokens): a pyramid up to the window; past it the
/// window's whole triangle each time, and W for each token past it.
Wide scores_of_all_starts(Wide tokens, std::uint32_t window_tokens) {
  const Wide past = past_window(tokens, window_tokens);
  return pyramid(tokens - past) + past * triangle(window_tokens) + triangle(past) * window_tokens;
}

/// Passes over the text that make the new tokens: at least the one that reads the prompt.
std::uint64_t rounds(std::uint64_t new_tokens) { return std::max<std::uint64_t>(new_tokens, 1); }

Wide wide_scores(std::uint32_t window_tokens, std::uint64_t first_position,
                 std::uint64_t num_tokens) {
  check_counted(first_position, num_tokens);
  return scores_from_start(Wide{first_position} + num_tokens, window_tokens) -
         scores_from_start(first_position, window_tokens);
}

Wide wide_scores_without_cache(std::uint32_t window_tokens, std::uint64_t prompt_tokens,
                               std::uint64_t new_tokens) {
  check_counted(prompt_tokens, new_tokens);
  const Wide longest = Wide{prompt_tokens} + rounds(new_tokens) - 1;
  const Wide before = prompt_tokens == 0 ? 0 : prompt_tokens - 1;
  return scores_of_all_starts(longest, window_tokens) - scores_of_all_starts(before, window_tokens);
}

}  // namespace

std::uint64_t attention_scores(std::uint32_t window_tokens, std::uint64_t first_position,
                               std::uint64_t num_tokens) {
  return saturated(wide_scores(window_tokens, first_position, num_tokens));
}

std::uint64_t attention_scores(const KvGeometry& geometry, std::uint64_t first_position,
                               std::uint64_t num_tokens) {
  Wide sum = 0;
  for (const KvLayerGroup& group : geometry.groups) {
    sum += wide_scores(group.window_tokens, first_position, num_tokens) * group.num_layers;
  }
  return saturated(sum);
}

std::uint64_t token_passes_with_cache(std::uint64_t prompt_tokens, std::uint64_t new_tokens) {
  check_counted(prompt_tokens, new_tokens);
  return prompt_tokens + rounds(new_tokens) - 1;
}

std::uint64_t token_passes_without_cache(std::uint64_t prompt_tokens, std::uint64_t new_tokens) {
  check_counted(prompt_tokens, new_tokens);
  const Wide passes = rounds(new_tokens);
  return saturated(passes * prompt_tokens + triangle(passes - 1));
}

std::uint64_t attention_scores_with_cache(std::uint32_t window_tokens, std::uint64_t prompt_tokens,
                                          std::uint64_t new_tokens) {
  return attention_scores(window_tokens, 0, token_passes_with_cache(prompt_tokens, new_tokens));
}

std::uint64_t attention_scores_without_cache(std::uint32_t window_tokens,
                                             std::uint64_t prompt_tokens,
                                             std::uint64_t new_tokens) {
  return saturated(wide_scores_without_cache(window_tokens, prompt_tokens, new_tokens));
}

std::uint64_t attention_scores_without_cache(const KvGeometry& geometry,
                                             std::uint64_t prompt_tokens,
                                             std::uint64_t new_tokens) {
  Wide sum = 0;
  for (const KvLayerGroup& group : geometry.groups) {
    sum += wide_scores_without_cache(group.window_tokens, prompt_tokens, new_tokens) *
           group.num_layers;
  }
  return saturated(sum);
}

}  // namespace kvasir::kvcache
