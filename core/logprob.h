// What a logprob may be, for those who compute it and those who print it.
#pragma once

namespace kvasir {

/// Stands for "off the list": the logprob of a token at -inf or NaN, and the least that any token
/// gets.
inline constexpr float kOffListLogprob = -9999.0F;

}  // namespace kvasir
