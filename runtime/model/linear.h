// One product of a matrix and the rows of a step, whichever layout the matrix has. Which rows, and
// which share of the matrix a worker takes, is the decoder's choice; the arithmetic is the
// kernels'.
#pragma once

#include "runtime/kernels/kernel_table.h"
#include "runtime/model/weights.h"
#include "runtime/worker_team.h"

#include <cstddef>
#include <cstdint>

namespace kvasir::runtime {

/// Rows of activations in the forms that the matrices of a phase read; a form that none of them
/// reads may be null.
struct LinearInput {
  const float* rows = nullptr;  // [num_rows, cols], `stride` floats apart
  std::size_t stride = 0;
  const std::byte* quantized = nullptr;  // the same as QuantKernels::quantize_row leaves it
  std::size_t quantized_stride = 0;      // bytes
  std::uint32_t num_rows = 0;
};

/// y[m * stride + r - first_row] = matrix row r times input row m (+ bias[r]), added to what is
/// there with `accumulate`.
struct LinearOutput {
  float* y = nullptr;
  std::size_t stride = 0;
  std::uint32_t first_row = 0;
  const float* bias = nullptr;
  bool accumulate = false;
};

/// Whole panels of a matrix are the unit of work, in either layout.
[[nodiscard]] std::size_t num_units(const WeightMatrix& matrix);

/// A unit that this thread reads afterwards, to be fetched meanwhile; none when `matrix` is null.
struct NextUnit {
  const WeightMatrix* matrix = nullptr;
  std::size_t unit = 0;
};

/// Computes the units [units.begin, units.end) of a matrix. `scratch` holds linear_scratch_bytes(),
/// is 64-byte aligned and this thread's own.
void multiply(const KernelTable& kernels, const WeightMatrix& matrix, WorkRange units,
              const LinearInput& x, const LinearOutput& y, std::byte* scratch,
              const NextUnit& next = {});

[[nodiscard]] std::size_t linear_scratch_bytes(const KernelTable& kernels, std::uint32_t cols);

}  // namespace kvasir::runtime
