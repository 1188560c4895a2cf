// Packed weights against the views that they were made of: every row, whatever the type, layout and
// number of threads.
#include "runtime/model/pack_weights.h"

#include "core/rng.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/kernels/float_panels.h"
#include "runtime/kernels/panels.h"
#include "tests/support/catch.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;

namespace {

/// Views of one layer of random blocks.
struct Model {
  ModelWeights views;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes;
  std::uint64_t next = 0;

  WeightMatrix matrix(GgmlType type, std::uint32_t rows, std::uint32_t cols) {
    const GgmlTypeInfo& info = type_info(type);
    const std::size_t row_bytes = std::size_t{cols} / info.block_elements * info.block_bytes;
    auto data = std::make_unique<std::vector<std::byte>>(rows * row_bytes);
    for (std::byte& byte : *data) {
      const double uniform = uniform01({.seed = 5, .choice_index = 0, .position = next++});
      byte = static_cast<std::byte>(static_cast<int>(uniform * 256.0));
    }
    bytes.push_back(std::move(data));
    return {type, rows, cols, row_bytes, bytes.back()->data()};
  }
};

/// Rows that do not fill their last panel, and all kinds of types.
Model make_model(bool tied) {
  Model model;
  ModelWeights& w = model.views;
  w.token_embedding = model.matrix(GgmlType::kQ8_0, 100, 256);
  w.tied_head = tied;
  w.output_head = tied ? w.token_embedding : model.matrix(GgmlType::kQ6_K, 100, 256);
  LayerWeights layer;
  layer.query = model.matrix(GgmlType::kQ4_1, 64, 256);
  layer.key = model.matrix(GgmlType::kQ4_K, 32, 256);
  layer.value = model.matrix(GgmlType::kF16, 33, 256);
  layer.attention_output = model.matrix(GgmlType::kQ4_0, 256, 64);
  layer.ffn_gate = model.matrix(GgmlType::kF32, 70, 256);
  layer.ffn_up = model.matrix(GgmlType::kIQ4_NL, 70, 256);
  layer.ffn_down = model.matrix(GgmlType::kBF16, 256, 70);
  layer.query_bias = {1.0F, 2.0F};
  w.layers.push_back(layer);
  return model;
}

std::vector<float> row_of_views(const WeightMatrix& matrix, std::uint32_t row) {
  std::vector<float> out(matrix.cols);
  kernels_for(Isa::kScalar)
      .dequantize(matrix.type, matrix.data + row * matrix.row_bytes, out.data(), matrix.cols);
  return out;
}

std::vector<float> row_of_packed(const WeightMatrix& matrix, std::uint32_t row) {
  if (matrix.layout == WeightLayout::kRows) return row_of_views(matrix, row);
  std::vector<float> out(matrix.cols);
  if (matrix.layout == WeightLayout::kFloatPanels) {
    std::vector<std::byte> elements(matrix.row_bytes);
    unpack_float_row(matrix.type,
                     matrix.data + row / kPanelRows * float_panel_bytes(matrix.type, matrix.cols),
                     row % kPanelRows, matrix.cols, elements.data());
    kernels_for(Isa::kScalar).dequantize(matrix.type, elements.data(), out.data(), matrix.cols);
    return out;
  }
  unpack_row(matrix.type, matrix.data + row / kPanelRows * panel_bytes(matrix.type, matrix.cols),
             row % kPanelRows, matrix.cols, out.data());
  return out;
}

/// Random bytes make some scales NaN; which NaN comes of them does not matter.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!both_nan && std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return false;
    }
  }
  return a.size() == b.size();
}

}  // namespace

TEST_CASE("pack_weights: every row of every matrix is kept", "[runtime][model]") {
  for (const bool tied : {false, true}) {
    const Model model = make_model(tied);
    for (const Activations activations : {Activations::kInt8, Activations::kF32}) {
      for (const std::uint32_t num_threads : {1U, 2U, 5U}) {
        const ModelWeights packed = pack_weights(model.views, activations, num_threads, nullptr);
        const auto from = model.views.matrices(), to = packed.matrices();
        REQUIRE(from.size() == to.size());
        REQUIRE(to.size() == (tied ? 8U : 9U));
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool int8 = activations == Activations::kInt8 && has_panels(from[i]->type);
          const bool floats = has_float_panels(from[i]->type);
          REQUIRE(to[i]->layout == (int8     ? WeightLayout::kPanels
                                    : floats ? WeightLayout::kFloatPanels
                                             : WeightLayout::kRows));
          REQUIRE(reinterpret_cast<std::uintptr_t>(to[i]->data) % 64 == 0);
          for (std::uint32_t row = 0; row < from[i]->rows; ++row) {
            INFO("matrix " << i << ", row " << row);
            REQUIRE(same_bits(row_of_packed(*to[i], row), row_of_views(*from[i], row)));
          }
        }
        CHECK((packed.output_head.data == packed.token_embedding.data) == tied);
        CHECK(packed.layers[0].query_bias == model.views.layers[0].query_bias);
      }
    }
  }
}

TEST_CASE("planned_weights: the layouts and bytes that pack_weights will have",
          "[runtime][model]") {
  const Model model = make_model(true);
  for (const Activations activations : {Activations::kInt8, Activations::kF32}) {
    const ModelWeights planned = planned_weights(model.views, activations);
    const ModelWeights packed = pack_weights(model.views, activations, 1, nullptr);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < planned.matrices().size(); ++i) {
      CHECK(planned.matrices()[i]->layout == packed.matrices()[i]->layout);
      CHECK(planned.matrices()[i]->data == nullptr);
      sum += packed.matrices()[i]->size_bytes();
    }
    CHECK(packed_bytes(planned) >= sum);
    CHECK(packed_bytes(planned) < sum + 64 * planned.matrices().size());
    CHECK(packed.pages.size_bytes() >= packed_bytes(planned));
  }
}

TEST_CASE("kernels_text: names the kernels of each type, the largest share first",
          "[runtime][model]") {
  const Model model = make_model(true);
  const KernelTable& kernels = kernels_for(best_isa());
  const std::string panels = std::string(" by int8 panels (") + kernels.quant->name + ")";
  const std::string float_panels = std::string(" by float panels (") + kernels.name + ")";
  const std::string rows = std::string(" by float rows (") + kernels.name + ")";
  const std::string int8 = kernels_text(planned_weights(model.views, Activations::kInt8), kernels);
  CHECK(int8.find("Q8_0" + panels) == 0);
  CHECK(int8.find("Q4_K" + panels) != std::string::npos);
  CHECK(int8.find("F16" + float_panels) != std::string::npos);
  const std::string f32 = kernels_text(planned_weights(model.views, Activations::kF32), kernels);
  CHECK(f32.find("Q8_0" + rows) == 0);
  CHECK(f32.find("int8") == std::string::npos);
}
