#include "runtime/model/linear.h"

#include "runtime/kernels/panels.h"

#include <algorithm>

namespace kvasir::runtime {
namespace {

void multiply_panels(const KernelTable& kernels, const WeightMatrix& matrix, WorkRange units,
                     const LinearInput& x, const LinearOutput& y, std::byte* scratch,
                     const std::byte* next) {
  QuantMatmulTask task;
  task.type = matrix.type;
  task.panels = matrix.data;
  task.k = matrix.cols;
  task.num_rows = matrix.rows;
  task.panel_begin = static_cast<std::uint32_t>(units.begin);
  task.panel_end = static_cast<std::uint32_t>(units.end);
  task.x = x.quantized;
  task.x_stride = x.quantized_stride;
  task.num_x = x.num_rows;
  task.y = y.y;
  task.y_stride = y.stride;
  task.y_first_row = y.first_row;
  task.bias = y.bias;
  task.accumulate = y.accumulate;
  task.next = next;
  task.scratch = scratch;
  kernels.quant->matmul(task);
}

void multiply_floats(const KernelTable& kernels, const WeightMatrix& matrix, WorkRange units,
                     const LinearInput& x, const LinearOutput& y, std::byte* scratch) {
  MatmulTask task;
  task.type = matrix.type;
  task.weights = matrix.data;
  task.row_bytes = matrix.row_bytes;
  task.k = matrix.cols;
  task.row_begin = static_cast<std::uint32_t>(units.begin * kPanelRows);
  task.row_end =
      static_cast<std::uint32_t>(std::min<std::size_t>(units.end * kPanelRows, matrix.rows));
  task.x = x.rows;
  task.x_stride = x.stride;
  task.num_x = x.num_rows;
  task.y = y.y;
  task.y_stride = y.stride;
  task.y_first_row = y.first_row;
  task.bias = y.bias;
  task.accumulate = y.accumulate;
  task.scratch = reinterpret_cast<float*>(scratch);
  if (matrix.layout == WeightLayout::kRows) return kernels.matmul(task);
  kernels.matmul_panels(task);
}

}  // namespace

std::size_t num_units(const WeightMatrix& matrix) { return num_panels(matrix.rows); }

void multiply(const KernelTable& kernels, const WeightMatrix& matrix, WorkRange units,
              const LinearInput& x, const LinearOutput& y, std::byte* scratch,
              const NextUnit& next) {
  if (units.begin == units.end || x.num_rows == 0) return;
  if (matrix.layout != WeightLayout::kPanels) {
    return multiply_floats(kernels, matrix, units, x, y, scratch);
  }
  const bool fetches = next.matrix != nullptr && next.matrix->layout == WeightLayout::kPanels;
  multiply_panels(
      kernels, matrix, units, x, y, scratch,
      fetches ? next.matrix->data + next.unit * panel_bytes(next.matrix->type, next.matrix->cols)
              : nullptr);
}

std::size_t linear_scratch_bytes(const KernelTable& kernels, std::uint32_t cols) {
  return std::max(kernels.quant->scratch_bytes(cols),
                  kernels.matmul_scratch_floats(cols) * sizeof(float));
}

}  // namespace kvasir::runtime
