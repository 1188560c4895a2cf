#include "runtime/model/work_share.h"

#include "core/check.h"

namespace kvasir::runtime {
namespace {

// Rows of a step for each square of the number of groups; see the header.
constexpr std::size_t kRowsPerSquare = 8;

std::uint32_t num_groups(std::size_t num_rows, std::uint32_t num_threads) {
  for (std::uint32_t groups = num_threads; groups > 1; --groups) {
    const std::size_t rows_needed = kRowsPerSquare * groups * groups;
    if (num_threads % groups == 0 && num_rows >= rows_needed) return groups;
  }
  return 1;
}

WorkShare share_in_groups(std::size_t num_rows, std::uint32_t groups, std::uint32_t worker,
                          std::uint32_t num_threads) {
  KVASIR_CHECK(worker < num_threads);
  WorkShare share;
  share.worker = worker;
  share.parts = num_threads / groups;
  share.part = worker % share.parts;
  share.rows = split_range(num_rows, 1, worker / share.parts, groups);
  return share;
}

}  // namespace

WorkRange WorkShare::units(std::size_t num_units) const {
  return split_range(num_units, 1, part, parts);
}

WorkRange WorkShare::own_rows() const {
  const WorkRange own = split_range(rows.end - rows.begin, 1, part, parts);
  return {rows.begin + own.begin, rows.begin + own.end};
}

WorkShare work_share(std::size_t num_rows, std::uint32_t worker, std::uint32_t num_threads) {
  return share_in_groups(num_rows, num_groups(num_rows, num_threads), worker, num_threads);
}

WorkShare column_share(std::size_t num_rows, std::uint32_t worker, std::uint32_t num_threads) {
  return share_in_groups(num_rows, 1, worker, num_threads);
}

}  // namespace kvasir::runtime
