// The KV arena's element type as kernels call it. The kernels' headers know nothing of kvcache, so
// that the files of an instruction set need not include it.
#pragma once

#include "kvcache/kv_geometry.h"
#include "runtime/kernels/attention_kernels.h"

namespace kvasir::runtime {

static_assert(static_cast<int>(KvElement::kF32) == static_cast<int>(kvcache::KvType::kF32));
static_assert(static_cast<int>(KvElement::kF16) == static_cast<int>(kvcache::KvType::kF16));
static_assert(static_cast<int>(KvElement::kBf16) == static_cast<int>(kvcache::KvType::kBf16));

[[nodiscard]] constexpr KvElement kv_element(kvcache::KvType type) {
  return static_cast<KvElement>(type);
}

}  // namespace kvasir::runtime
