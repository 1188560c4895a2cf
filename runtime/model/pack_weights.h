// Puts a model's matrices into memory of their own, in the layout that the kernels want; after that
// the file is not needed. Where the bytes come from is weights.h, how a panel looks panels.h.
#pragma once

#include "runtime/kernels/kernel_table.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/weights.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::runtime {

/// How the inputs of linear layers are multiplied.
enum class Activations : std::uint8_t {
  kInt8,  // rounded to int8 in blocks of 32, where the weights are quantised
  kF32,   // never rounded
};

[[nodiscard]] std::string_view activations_name(Activations activations);  // "int8", "f32"

/// The matrices of `views` as pack_weights will lay them out, without data: for sums of bytes.
[[nodiscard]] ModelWeights planned_weights(const ModelWeights& views, Activations activations);
/// Bytes of memory that packed weights take.
[[nodiscard]] std::uint64_t packed_bytes(const ModelWeights& planned);

/// A copy of `views` that owns its bytes: float types in float panels; quantised ones in panels
/// where `activations` is int8, else in rows. `file` is what the views lie in: its pages are given
/// back as they are read (null: the views lie elsewhere and are left alone). Throws std::bad_alloc
/// or std::system_error (threads).
[[nodiscard]] ModelWeights pack_weights(const ModelWeights& views, Activations activations,
                                        std::uint32_t num_threads, const GgufFile* file);

/// For log and `inspect`: which kernels multiply by the model's matrices, largest share first:
/// "Q4_1 by int8 panels (avx512vnni), F16 by float panels (avx512)".
[[nodiscard]] std::string kernels_text(const ModelWeights& planned, const KernelTable& kernels);

}  // namespace kvasir::runtime
