// What the tests of attention share: a KV cache in tiles, rows that a task computes in any company
// or in parts, and the same in the promised order and in double precision.
#pragma once

#include "tests/runtime/kernels/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvasir::runtime::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kUntouched = -7.0F;

struct Shape {
  KvElement element = KvElement::kF16;
  std::uint32_t block_tokens = 32, head_dim = 64;
};

inline const Shape kShapes[] = {
    {KvElement::kF32, 16, 8},   {KvElement::kF32, 32, 64},   {KvElement::kF32, 64, 24},
    {KvElement::kF16, 16, 80},  {KvElement::kF16, 32, 64},   {KvElement::kF16, 64, 128},
    {KvElement::kBf16, 32, 48}, {KvElement::kBf16, 16, 128}, {KvElement::kF16, 32, 1},
    {KvElement::kBf16, 64, 17},
};

inline std::string describe(const Shape& shape) {
  return "element " + std::to_string(static_cast<int>(shape.element)) + ", block " +
         std::to_string(shape.block_tokens) + ", head_dim " + std::to_string(shape.head_dim);
}

inline std::size_t element_bytes(KvElement element) { return element == KvElement::kF32 ? 4 : 2; }

inline float scale_of(const Shape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
}

/// The KV cache of one sequence and one KV head, in blocks. Whatever was not stored is NaN.
class Cache {
 public:
  Cache(const Shape& shape, std::uint32_t num_positions) : shape_(shape) {
    const std::size_t bytes =
        std::size_t{shape.head_dim} * shape.block_tokens * element_bytes(shape.element);
    for (std::uint32_t begin = 0; begin < num_positions; begin += shape.block_tokens) {
      // All bits set: a NaN in each of the three element types. One allocation each, so that ASan
      // sees overreads.
      for (auto* tiles : {&k_, &v_}) {
        tiles->push_back(std::make_unique<std::byte[]>(bytes));
        std::fill_n(tiles->back().get(), bytes, std::byte{0xFF});
      }
      k_tiles_.push_back(k_.back().get());
      v_tiles_.push_back(v_.back().get());
    }
  }

  void put(std::uint32_t position, const std::vector<float>& k, const std::vector<float>& v) {
    const std::uint32_t b = position / shape_.block_tokens;
    kernels_for(Isa::kScalar)
        .store_kv(shape_.element, k.data(), v.data(), k_[b].get(), v_[b].get(), shape_.head_dim,
                  shape_.block_tokens, position % shape_.block_tokens);
  }
  void fill(std::uint32_t position, float x) {
    const std::vector<float> values(shape_.head_dim, x);
    put(position, values, values);
  }

  float k(std::uint32_t position, std::uint32_t d) const {
    return read(k_[position / shape_.block_tokens].get(),
                std::size_t{d} * shape_.block_tokens + position % shape_.block_tokens);
  }
  float v(std::uint32_t position, std::uint32_t d) const {
    return read(v_[position / shape_.block_tokens].get(),
                std::size_t{position % shape_.block_tokens} * shape_.head_dim + d);
  }
  const std::byte* const* k_tiles() const { return k_tiles_.data(); }
  const std::byte* const* v_tiles() const { return v_tiles_.data(); }
  const Shape& shape() const { return shape_; }

 private:
  float read(const std::byte* tile, std::size_t i) const {
    const GgmlType type = shape_.element == KvElement::kF32   ? GgmlType::kF32
                          : shape_.element == KvElement::kF16 ? GgmlType::kF16
                                                              : GgmlType::kBF16;
    float out = 0.0F;
    kernels_for(Isa::kScalar).dequantize(type, tile + i * element_bytes(shape_.element), &out, 1);
    return out;
  }

  Shape shape_;
  std::vector<std::unique_ptr<std::byte[]>> k_, v_;
  std::vector<const std::byte*> k_tiles_, v_tiles_;
};

/// Seeded keys and values at [0, num_positions).
inline Cache filled_cache(const Shape& shape, std::uint32_t num_positions, std::uint32_t seed) {
  Cache cache(shape, num_positions);
  Numbers numbers(seed);
  for (std::uint32_t p = 0; p < num_positions; ++p) {
    cache.put(p, numbers.floats(shape.head_dim, 2.0F), numbers.floats(shape.head_dim));
  }
  return cache;
}

/// A row of a test; its q is seeded by its number. It sees `window` positions up to its own, or
/// all.
struct Row {
  std::uint32_t position = 0;
  std::vector<float> q;
  std::uint32_t first = 0;
};
inline Row make_row(const Shape& shape, std::uint32_t position, std::uint32_t number,
                    std::uint32_t window = 0) {
  Numbers numbers(1000 + number);
  const bool sees_all = window == 0 || position < window;
  return {position, numbers.floats(shape.head_dim, 2.0F), sees_all ? 0 : position + 1 - window};
}

struct Ranges {
  std::uint32_t begin = 0, end = 0;
};
inline Ranges ranges_of(const Row& row) {
  return {row.first / kAttentionRange, row.position / kAttentionRange + 1};
}
inline Ranges ranges_of(const std::vector<Row>& rows) {
  return {ranges_of(rows.front()).begin, ranges_of(rows.back()).end};
}

/// Tiles from a range's first on; those that no row sees are null, so that reading them is a crash.
inline std::vector<const std::byte*> seen_tiles(const std::byte* const* tiles, const Shape& shape,
                                                const std::vector<AttentionRow>& rows,
                                                Ranges ranges) {
  std::uint32_t first = ~0U, last = 0;
  for (const AttentionRow& row : rows) {
    first = std::min(first, row.first_position);
    last = std::max(last, row.position);
  }
  std::vector<const std::byte*> seen;
  const std::uint32_t begin = ranges.begin * kAttentionRange;
  for (std::uint32_t p = begin; p <= last; p += shape.block_tokens) {
    const bool in_sight = p + shape.block_tokens > first;
    seen.push_back(in_sight ? tiles[p / shape.block_tokens] : nullptr);
  }
  return seen;
}

/// Calls the kernel; rows[i].partials may be set. Checks that the scratch is not overrun.
inline void call_kernel(const KernelTable& table, const Cache& cache,
                        std::vector<AttentionRow>& rows, Ranges ranges) {
  const Shape& shape = cache.shape();
  const AttentionKernels& kernels = *table.attention_kernels;
  const std::size_t floats = kernels.scratch_floats(shape.head_dim);
  std::vector<float> scratch(floats + 32, kNan);
  float* aligned = scratch.data();
  while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
  aligned[floats] = kUntouched;
  AttentionTask task;
  task.element = shape.element;
  task.block_tokens = shape.block_tokens;
  task.head_dim = shape.head_dim;
  task.first_range = ranges.begin;
  task.end_range = ranges.end;
  const auto k_tiles = seen_tiles(cache.k_tiles(), shape, rows, ranges);
  const auto v_tiles = seen_tiles(cache.v_tiles(), shape, rows, ranges);
  task.k_tiles = k_tiles.data();
  task.v_tiles = v_tiles.data();
  task.rows = rows.data();
  task.num_rows = static_cast<std::uint32_t>(rows.size());
  task.scale = scale_of(shape);
  task.scratch = aligned;
  kernels.attend(task);
  REQUIRE(aligned[floats] == kUntouched);
}

/// The outputs of rows that one task computes, positions ascending.
inline std::vector<std::vector<float>> attend(const KernelTable& table, const Cache& cache,
                                              const std::vector<Row>& rows) {
  const std::size_t dims = cache.shape().head_dim;
  std::vector<std::vector<float>> out(rows.size(), std::vector<float>(dims + 1, kUntouched));
  std::vector<AttentionRow> task_rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    task_rows.push_back(
        {rows[i].q.data(), rows[i].first, rows[i].position, out[i].data(), nullptr});
  }
  call_kernel(table, cache, task_rows, ranges_of(rows));
  for (auto& row : out) {
    REQUIRE(row.back() == kUntouched);
    row.pop_back();
  }
  return out;
}
inline std::vector<float> attend_alone(const KernelTable& table, const Cache& cache,
                                       const Row& row) {
  return attend(table, cache, {row})[0];
}

/// Partial results of rows, computed by any number of tasks and then merged.
class Partials {
 public:
  Partials(const KernelTable& table, const Cache& cache, std::vector<Row> rows)
      : table_(table),
        cache_(cache),
        rows_(std::move(rows)),
        floats_(table.attention_kernels->partial_floats(cache.shape().head_dim)) {
    for (const Row& row : rows_) {
      partials_.emplace_back(num_ranges(row) * floats_ + 1, kUntouched);
    }
  }
  /// One task of rows [begin, end), in the order of the permutation.
  void attend(const std::vector<std::size_t>& which, Ranges ranges) {
    std::vector<AttentionRow> task_rows;
    for (const std::size_t i : which) {
      task_rows.push_back(
          {rows_[i].q.data(), rows_[i].first, rows_[i].position, nullptr, partials_[i].data()});
    }
    call_kernel(table_, cache_, task_rows, ranges);
  }
  std::vector<float> merged(std::size_t i) const {
    REQUIRE(partials_[i].back() == kUntouched);
    const std::uint32_t dims = cache_.shape().head_dim;
    std::vector<float> out(dims + 1, kUntouched);
    table_.attention_kernels->merge(partials_[i].data(), num_ranges(rows_[i]), dims, out.data());
    REQUIRE(out.back() == kUntouched);
    out.pop_back();
    return out;
  }

 private:
  static std::uint32_t num_ranges(const Row& row) {
    return ranges_of(row).end - ranges_of(row).begin;
  }

  const KernelTable& table_;
  const Cache& cache_;
  std::vector<Row> rows_;
  std::size_t floats_;
  std::vector<std::vector<float>> partials_;
};

/// One row in the promised order, written plainly.
inline std::vector<float> attend_in_order(const KernelTable& table, const Cache& cache,
                                          const Row& row) {
  const Shape& shape = cache.shape();
  std::vector<float> total(shape.head_dim);
  float total_max = -kInfinity, total_sum = 0.0F;
  for (std::uint32_t r = ranges_of(row).begin; r < ranges_of(row).end; ++r) {
    const std::uint32_t begin = r * kAttentionRange;
    const std::uint32_t seen = std::max(row.first, begin) - begin;
    const std::uint32_t count = std::min(kAttentionRange, row.position + 1 - begin);
    std::vector<float> weights(count);
    float largest = -kInfinity;
    for (std::uint32_t j = seen; j < count; ++j) {
      float score = 0.0F;
      for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
        score = multiply_add(table.isa, row.q[d], cache.k(begin + j, d), score);
      }
      weights[j] = score;
      largest = std::max(largest, score);
    }
    if (largest == -kInfinity) continue;
    const float max = largest * scale_of(shape);
    float lanes[16] = {};
    for (std::uint32_t j = seen; j < count; ++j) {
      weights[j] = table_exp(table, multiply_add(table.isa, weights[j], scale_of(shape), -max));
      lanes[j % 16] += weights[j];
    }
    const float sum = fold_lanes(lanes);
    std::vector<float> acc(shape.head_dim);
    for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
      for (std::uint32_t j = seen; j < count; ++j) {
        acc[d] = multiply_add(table.isa, weights[j], cache.v(begin + j, d), acc[d]);
      }
    }
    if (total_max == -kInfinity) {
      total_max = max;
      total_sum = sum;
      total = acc;
      continue;
    }
    const float new_max = std::max(total_max, max);
    const float keep = table_exp(table, total_max - new_max);
    const float take = table_exp(table, max - new_max);
    total_max = new_max;
    total_sum = total_sum * keep + sum * take;
    for (std::uint32_t d = 0; d < shape.head_dim; ++d) total[d] = total[d] * keep + acc[d] * take;
  }
  for (float& x : total) x /= total_sum;
  return total;
}

/// One row in double precision, with the error that rounding may make of each output.
inline void check_near_double(const Cache& cache, const Row& row, const std::vector<float>& out) {
  const Shape& shape = cache.shape();
  const double scale = static_cast<double>(scale_of(shape));
  const std::uint32_t num_seen = row.position + 1 - row.first;
  std::vector<double> scores(num_seen);
  double largest = -std::numeric_limits<double>::infinity(), largest_magnitude = 0.0;
  for (std::uint32_t i = 0; i < num_seen; ++i) {
    double magnitude = 0.0;
    for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
      const double product =
          static_cast<double>(row.q[d]) * static_cast<double>(cache.k(row.first + i, d));
      scores[i] += product * scale;
      magnitude += std::fabs(product) * scale;
    }
    largest = std::max(largest, scores[i]);
    if (std::isfinite(magnitude)) largest_magnitude = std::max(largest_magnitude, magnitude);
  }
  double sum = 0.0;
  std::vector<double> weights(num_seen);
  for (std::uint32_t i = 0; i < num_seen; ++i) sum += weights[i] = std::exp(scores[i] - largest);
  // A score is off by 2 head_dim roundings of its magnitude and its difference to the maximum by
  // one more (and so the exponential by as much, relatively, plus its own 2 ulp); sums have at most
  // 2 roundings a position.
  const double score_error = (2.0 * shape.head_dim + 4.0) * kRounding * largest_magnitude;
  const double relative = 2.0 * score_error + (4.0 * num_seen + 32.0) * kRounding;
  for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
    double exact = 0.0, magnitude = 0.0;
    for (std::uint32_t i = 0; i < num_seen; ++i) {
      const double v = static_cast<double>(cache.v(row.first + i, d));
      exact += weights[i] * v;
      magnitude += weights[i] * std::fabs(v);
    }
    REQUIRE(std::fabs(static_cast<double>(out[d]) - exact / sum) <= relative * magnitude / sum);
  }
}

/// `num_rows` rows of queries with `group` heads each, the last at `last_position`.
inline std::vector<Row> consecutive_rows(const Shape& shape, std::uint32_t num_rows,
                                         std::uint32_t group, std::uint32_t last_position,
                                         std::uint32_t window = 0) {
  std::vector<Row> rows;
  for (std::uint32_t i = 0; i < num_rows; ++i) {
    rows.push_back(make_row(shape, last_position - (num_rows - 1 - i) / group, i, window));
  }
  return rows;
}

inline void check_company(const KernelTable& table, const Cache& cache,
                          const std::vector<Row>& rows) {
  const auto together = attend(table, cache, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i << " of " << rows.size() << " at position " << rows[i].position);
    REQUIRE(same_bits(together[i], attend_alone(table, cache, rows[i])));
  }
}

}  // namespace kvasir::runtime::testing
