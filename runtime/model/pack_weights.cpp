#include "runtime/model/pack_weights.h"

#include "runtime/kernels/float_panels.h"
#include "runtime/kernels/panels.h"
#include "runtime/worker_team.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace kvasir::runtime {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

WeightLayout layout_for(const WeightMatrix& matrix, Activations activations) {
  if (has_float_panels(matrix.type)) return WeightLayout::kFloatPanels;
  return activations == Activations::kInt8 && has_panels(matrix.type) ? WeightLayout::kPanels
                                                                      : WeightLayout::kRows;
}

/// Panels [panels.begin, panels.end) of `to`, or the same rows.
void fill(const WeightMatrix& from, const WeightMatrix& to, std::byte* out, WorkRange panels) {
  const std::size_t first_row = panels.begin * kPanelRows;
  const std::size_t end_row = std::min<std::size_t>(panels.end * kPanelRows, from.rows);
  if (to.layout == WeightLayout::kRows) {
    std::memcpy(out + first_row * from.row_bytes, from.data + first_row * from.row_bytes,
                (end_row - first_row) * from.row_bytes);
    return;
  }
  const bool floats = to.layout == WeightLayout::kFloatPanels;
  const std::size_t bytes = to.size_bytes() / num_panels(to.rows);
  for (std::size_t panel = panels.begin; panel < panels.end; ++panel) {
    const std::size_t row = panel * kPanelRows;
    (floats ? pack_float_panel : pack_panel)(
        from.type, from.data + row * from.row_bytes, from.row_bytes,
        static_cast<std::uint32_t>(std::min<std::size_t>(kPanelRows, from.rows - row)), from.cols,
        out + panel * bytes);
  }
}

}  // namespace

std::string_view activations_name(Activations activations) {
  return activations == Activations::kInt8 ? "int8" : "f32";
}

ModelWeights planned_weights(const ModelWeights& views, Activations activations) {
  ModelWeights planned;
  planned.token_embedding = views.token_embedding;
  planned.layers = views.layers;
  planned.output_norm = views.output_norm;
  planned.output_head = views.output_head;
  planned.tied_head = views.tied_head;
  for (WeightMatrix* matrix : planned.matrices()) {
    matrix->layout = layout_for(*matrix, activations);
    matrix->data = nullptr;
  }
  if (planned.tied_head) planned.output_head = planned.token_embedding;
  return planned;
}

std::uint64_t packed_bytes(const ModelWeights& planned) {
  std::uint64_t bytes = 0;
  for (const WeightMatrix* matrix : planned.matrices()) bytes += aligned(matrix->size_bytes());
  return bytes;
}

ModelWeights pack_weights(const ModelWeights& views, Activations activations,
                          std::uint32_t num_threads, const GgufFile* file) {
  ModelWeights packed = planned_weights(views, activations);
  packed.pages = PageBuffer(packed_bytes(packed));
  const auto from = views.matrices();
  const auto to = packed.matrices();
  std::vector<std::byte*> out;  // [matrices]
  std::byte* next = packed.pages.data();
  for (WeightMatrix* matrix : to) {
    out.push_back(next);
    matrix->data = next;
    next += aligned(matrix->size_bytes());
  }
  if (packed.tied_head) packed.output_head = packed.token_embedding;

  WorkerTeam team(num_threads);
  team.run([&](std::uint32_t worker) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const WorkRange panels = split_range(num_panels(from[i]->rows), 1, worker, num_threads);
      if (panels.begin == panels.end) continue;
      fill(*from[i], *to[i], out[i], panels);
      if (file == nullptr) continue;
      const std::size_t first = panels.begin * kPanelRows;
      const std::size_t end = std::min<std::size_t>(panels.end * kPanelRows, from[i]->rows);
      file->release_pages(
          {from[i]->data + first * from[i]->row_bytes, (end - first) * from[i]->row_bytes});
    }
  });
  return packed;
}

std::string kernels_text(const ModelWeights& planned, const KernelTable& kernels) {
  using Kind = std::pair<GgmlType, WeightLayout>;
  std::map<Kind, std::uint64_t> elements;
  for (const WeightMatrix* matrix : planned.matrices()) {
    elements[{matrix->type, matrix->layout}] += std::uint64_t{matrix->rows} * matrix->cols;
  }
  std::vector<std::pair<Kind, std::uint64_t>> kinds(elements.begin(), elements.end());
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [kind, count] : kinds) {
    const bool int8 = kind.second == WeightLayout::kPanels;
    text += std::string(text.empty() ? "" : ", ") + std::string(type_info(kind.first).name) +
            (int8                                        ? " by int8 panels ("
             : kind.second == WeightLayout::kFloatPanels ? " by float panels ("
                                                         : " by float rows (") +
            (int8 ? kernels.quant->name : kernels.name) + ")";
  }
  return text;
}

}  // namespace kvasir::runtime
