#include "server/token_room.h"

#include "kvcache/kv_geometry.h"

#include <algorithm>

namespace kvasir::server {
namespace {

Error context_error(const ModelInfo& model, std::uint64_t prompt_tokens, const WantedTokens& wanted,
                    std::uint64_t least, const std::string& param) {
  const std::string length = wanted.max_tokens
                                 ? "max_tokens is " + std::to_string(*wanted.max_tokens)
                                 : "at least " + std::to_string(least) + " must be generated";
  return {ErrorCode::kContextLengthExceeded,
          "the prompt has " + std::to_string(prompt_tokens) + " tokens and " + length +
              ", but the context is " + std::to_string(model.context_tokens) + " tokens",
          param};
}

/// `max_tokens`: that there must be room for.
Error budget_error(const ModelInfo& model, std::uint64_t prompt_tokens, const WantedTokens& wanted,
                   std::uint64_t max_tokens, const std::string& param) {
  const kvcache::KvGeometry& geometry = model.geometry;
  const std::uint64_t needed =
      geometry.blocks_for(kvcache::max_cached_tokens(prompt_tokens, max_tokens)) *
      geometry.bytes_per_block();
  const std::uint64_t budget = model.num_blocks * geometry.bytes_per_block();
  const std::uint64_t longest =
      kvcache::longest_prompt_tokens(geometry, model.num_blocks, max_tokens);
  return {ErrorCode::kContextLengthExceeded,
          "the prompt of " + std::to_string(prompt_tokens) + " tokens with " +
              (wanted.max_tokens ? "max_tokens " + std::to_string(*wanted.max_tokens)
                                 : "at least " + std::to_string(max_tokens) + " generated") +
              " needs " + std::to_string(needed) + " bytes of KV cache, but the whole budget is " +
              std::to_string(budget) + " bytes; the longest prompt that would fit has " +
              std::to_string(longest) + " tokens",
          param};
}

}  // namespace

Result<std::uint32_t> resolve_max_tokens(const ModelInfo& model, std::uint64_t prompt_tokens,
                                         const WantedTokens& wanted, const std::string& param) {
  const std::uint64_t least =
      wanted.max_tokens.value_or(std::max<std::uint64_t>(wanted.min_tokens, 1));
  const std::uint64_t context = model.context_tokens;
  if (prompt_tokens > context || least > context - prompt_tokens)
    return tl::unexpected<Error>(context_error(model, prompt_tokens, wanted, least, param));
  // Where nothing is generated, the last token of the prompt is computed all the same.
  const std::uint64_t room_for = std::max<std::uint64_t>(least, 1);
  const std::uint64_t longest =
      kvcache::longest_prompt_tokens(model.geometry, model.num_blocks, room_for);
  if (prompt_tokens > longest)
    return tl::unexpected<Error>(budget_error(model, prompt_tokens, wanted, room_for, param));
  if (wanted.max_tokens) return static_cast<std::uint32_t>(*wanted.max_tokens);
  // The same arithmetic the other way round: with this prompt, so many generated tokens still fit.
  const std::uint64_t left_in_budget =
      kvcache::longest_prompt_tokens(model.geometry, model.num_blocks, 1) - prompt_tokens + 1;
  const std::uint64_t left = std::min(context - prompt_tokens, left_in_budget);
  return static_cast<std::uint32_t>(
      std::min(left, std::max(wanted.when_absent, wanted.min_tokens)));
}

}  // namespace kvasir::server
