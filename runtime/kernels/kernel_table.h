// One struct of function pointers for each instruction set, chosen once at start (dispatch.h). The
// rules that keep the same bytes out: every output element has ONE accumulation order, whatever the
// number of rows, the thread or the chunk; tails are masked; no contraction and no fast-math; exp
// is our own. Bits are promised per instruction set.
//
// Dot products over k use sixteen lanes: lane j sums elements j, 16 + j, 32 + j, ... in ascending
// order (FMA in the SIMD sets, multiply then add in scalar), and the lanes are folded by the fixed
// tree (j, j + 8), (j, j + 4), (j, j + 2), (j, j + 1).
//
// Files of one set include only intrinsics and these headers and keep helpers in anonymous
// namespaces; so these headers have plain structs only, no inline functions.
#pragma once

#include "runtime/kernels/attention_kernels.h"
#include "runtime/kernels/quant_kernels.h"
#include "runtime/model/ggml_type.h"

#include <cstddef>
#include <cstdint>

namespace kvasir::runtime {

/// Slowest first. kAvxVnni is kAvx2 with AVX-VNNI dot products; kAvx512 needs F, BW, DQ, VL and
/// VNNI.
enum class Isa : std::uint8_t { kScalar, kAvx2, kAvxVnni, kAvx512 };

/// y[m][r] = dot(x[m], weights row r) (+ bias[r]) for m in [0, num_x) and r in [row_begin,
/// row_end); with `accumulate` that is added to what y holds.
struct MatmulTask {
  GgmlType type = GgmlType::kF32;
  const std::byte* weights = nullptr;  // row r at weights + r * row_bytes
  std::size_t row_bytes = 0;
  std::uint32_t k = 0;  // elements of a row; a multiple of the type's block
  std::uint32_t row_begin = 0, row_end = 0;
  const float* x = nullptr;  // [num_x, k], rows x_stride floats apart
  std::size_t x_stride = 0;
  std::uint32_t num_x = 0;
  float* y = nullptr;  // y[m * y_stride + r - y_first_row]
  std::size_t y_stride = 0;
  std::uint32_t y_first_row = 0;
  const float* bias = nullptr;  // null, or one for each weight row
  bool accumulate = false;
  float* scratch = nullptr;  // KernelTable::matmul_scratch_floats(k) floats, 64-byte aligned, one
                             // for each thread
};

/// What the sampler needs of a row of logits, over fixed ranges of the vocabulary.
struct LogitsStats {
  float max = 0.0F;
  std::uint32_t argmax = 0;  // ties to the lowest id
  float logsumexp = 0.0F;    // natural
};

struct KernelTable {
  Isa isa = Isa::kScalar;
  const char* name = "";
  const QuantKernels* quant = nullptr;
  const AttentionKernels* attention_kernels = nullptr;

  /// Blocks of `type` to num_elements floats (a multiple of the block); bit-equal to the reference
  /// on every set.
  void (*dequantize)(GgmlType type, const std::byte* blocks, float* out,
                     std::size_t num_elements) = nullptr;
  std::size_t (*matmul_scratch_floats)(std::uint32_t k) = nullptr;
  void (*matmul)(const MatmulTask& task) = nullptr;
  /// The same for weights in panels of a float type (float_panels.h): `weights` is the first panel,
  /// row_begin a multiple of 32; row_bytes and scratch are not used. Each output is one chain over
  /// k in ascending order, in one lane.
  void (*matmul_panels)(const MatmulTask& task) = nullptr;
  /// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]; out may alias x. The sum is the
  /// sixteen-lane dot product.
  void (*rms_norm)(const float* x, const float* weight, float* out, std::uint32_t n,
                   float epsilon) = nullptr;
  /// Rotates adjacent pairs (2i, 2i + 1) of one head in place: x[d] * cosines[d] + x[partner] *
  /// sines[d]; both [dims], the sine negative for the first of a pair.
  void (*rope_adjacent)(float* head, const float* cosines, const float* sines,
                        std::uint32_t dims) = nullptr;
  /// The same with pairs (i, i + dims / 2).
  void (*rope_halves)(float* head, const float* cosines, const float* sines,
                      std::uint32_t dims) = nullptr;
  /// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; out may alias either.
  void (*silu_multiply)(const float* gate, const float* up, float* out, std::size_t n) = nullptr;
  /// The same with GELU by its tanh approximation: gate[i] / (1 + exp(-2u)) * up[i] with
  /// u = sqrt(2 / pi) * (gate[i] + 0.044715 * gate[i]^3), in multiplications and additions.
  void (*gelu_multiply)(const float* gate, const float* up, float* out, std::size_t n) = nullptr;
  /// acc[i] += x[i].
  void (*add)(float* acc, const float* x, std::size_t n) = nullptr;
  /// Stores one token's K and V of one KV head into slot `slot` of its tiles, rounded to nearest
  /// even.
  void (*store_kv)(KvElement element, const float* k, const float* v, std::byte* k_tile,
                   std::byte* v_tile, std::uint32_t head_dim, std::uint32_t block_tokens,
                   std::uint32_t slot) = nullptr;
  /// NaN logits count as -inf. n >= 1.
  LogitsStats (*logits_stats)(const float* logits, std::uint32_t n) = nullptr;
  /// out[i] = exp(x[i] - shift); returns the sum over fixed ranges of 1024 (sixteen lanes each,
  /// ranges added in ascending order).
  float (*exp_shifted)(const float* x, float shift, float* out, std::uint32_t n) = nullptr;
  /// The same logsumexp for who knows the maximum already (-inf where all are NaN).
  float (*logsumexp)(const float* logits, float maximum, std::uint32_t n) = nullptr;

  /// maxima[r][j]: the largest x[r * 1024 + i] with i % 16 == j, for each range r of 1024; NaN
  /// counts as -inf, and a lane without elements is -inf. Shape [ceil(n / 1024)][16]. Returns the
  /// largest of all.
  float (*lane_maxima)(const float* x, std::uint32_t n, float* maxima) = nullptr;
  /// Writes each i with x[i] > below (never one of a NaN), ascending, and returns their number.
  std::uint32_t (*find_above)(const float* x, float below, std::uint32_t n,
                              std::uint32_t* indices) = nullptr;
  /// sums[r] = sum of exp((x[i] - maximum) / temperature) over range r of 1024, NaN counting as
  /// -inf and +inf as the largest float: in double, element i in lane i % 8, but the last
  /// (n % 8) of a range in lane 0, the lanes added in ascending order.
  void (*softmax_sums)(const float* x, float maximum, float temperature, double* sums,
                       std::uint32_t n) = nullptr;
};

}  // namespace kvasir::runtime
