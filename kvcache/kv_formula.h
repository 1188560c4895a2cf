// The arithmetic of KV bytes as text for people: the formula with a model's numbers filled in.
// kv_geometry computes; this only says how.
#pragma once

#include "kvcache/kv_geometry.h"

#include <string>

namespace kvasir::kvcache {

/// How bytes_per_token() comes about: "2 x 30 layers x 3 KV heads x 64 x 2 bytes = 23040" (keys and
/// values, layers, heads, head_dim, bytes of an element). Several groups of layers are summed, with
/// their windows named: "2 x 15 layers (window 512) x 1 KV head x 256 x 2 bytes + ... = 18432".
[[nodiscard]] std::string bytes_per_token_formula(const KvGeometry& geometry);

}  // namespace kvasir::kvcache
