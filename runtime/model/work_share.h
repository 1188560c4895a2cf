// How the work of a step is divided over the workers: by rows of the step, by units of a matrix, or
// by both. Pure arithmetic; what is computed, and when workers meet, is the decoder's business.
#pragma once

#include "runtime/worker_team.h"

#include <cstddef>
#include <cstdint>

namespace kvasir::runtime {

/// One worker's share of a product: part `part` of `parts` of the matrix's units, for `rows`.
struct WorkShare {
  std::uint32_t worker = 0;
  WorkRange rows;
  std::uint32_t part = 0, parts = 1;

  [[nodiscard]] std::uint32_t num_rows() const {
    return static_cast<std::uint32_t>(rows.end - rows.begin);
  }
  /// The units of this share among so many.
  [[nodiscard]] WorkRange units(std::size_t num_units) const;
  /// The rows that this worker prepares for itself and the others of its rows.
  [[nodiscard]] WorkRange own_rows() const;
};

/// Workers in groups: each group takes some of the rows, each worker in it a part of every matrix.
/// A group of one never waits for others between two products, and its rows stay in its caches; but
/// every group reads all weights. So there are as many groups as keep the weights' way short
/// against the arithmetic: their number divides num_threads, and its square times 8 is at most
/// num_rows. (Two threads at 32 rows: 16 rows each take longer to multiply than a panel to read.)
[[nodiscard]] WorkShare work_share(std::size_t num_rows, std::uint32_t worker,
                                   std::uint32_t num_threads);
/// One group, whatever the number of rows.
[[nodiscard]] WorkShare column_share(std::size_t num_rows, std::uint32_t worker,
                                     std::uint32_t num_threads);

}  // namespace kvasir::runtime
