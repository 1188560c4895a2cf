// Attention of rows in any company, on every instruction set of this machine: the promised order
// bit by bit, the double result within what rounding may do, and nothing of what lies behind a row.
#include "tests/runtime/kernels/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kUntouched = -7.0F;

struct Shape {
  KvElement element = KvElement::kF16;
  std::uint32_t block_tokens = 32, head_dim = 64;
};

const Shape kShapes[] = {
    {KvElement::kF32, 16, 8},   {KvElement::kF32, 32, 64},   {KvElement::kF32, 64, 24},
    {KvElement::kF16, 16, 80},  {KvElement::kF16, 32, 64},   {KvElement::kF16, 64, 128},
    {KvElement::kBf16, 32, 48}, {KvElement::kBf16, 16, 128}, {KvElement::kF16, 32, 1},
    {KvElement::kBf16, 64, 17},
};

std::string describe(const Shape& shape) {
  return "element " + std::to_string(static_cast<int>(shape.element)) + ", block " +
         std::to_string(shape.block_tokens) + ", head_dim " + std::to_string(shape.head_dim);
}

std::size_t element_bytes(KvElement element) { return element == KvElement::kF32 ? 4 : 2; }

float scale_of(const Shape& shape) { return 1.0F / std::sqrt(static_cast<float>(shape.head_dim)); }

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
Cache filled_cache(const Shape& shape, std::uint32_t num_positions, std::uint32_t seed) {
  Cache cache(shape, num_positions);
  Numbers numbers(seed);
  for (std::uint32_t p = 0; p < num_positions; ++p) {
    cache.put(p, numbers.floats(shape.head_dim, 2.0F), numbers.floats(shape.head_dim));
  }
  return cache;
}

/// A row of a test; its q is seeded by its number.
struct Row {
  std::uint32_t position = 0;
  std::vector<float> q;
};
Row make_row(const Shape& shape, std::uint32_t position, std::uint32_t number) {
  Numbers numbers(1000 + number);
  return {position, numbers.floats(shape.head_dim, 2.0F)};
}

struct Ranges {
  std::uint32_t begin = 0, end = 0;
};
Ranges ranges_of(std::uint32_t position) { return {0, position / kAttentionRange + 1}; }

/// Calls the kernel; rows[i].partials may be set. Checks that the scratch is not overrun.
void call_kernel(const KernelTable& table, const Cache& cache, std::vector<AttentionRow>& rows,
                 Ranges ranges) {
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
  const std::size_t first_tile = std::size_t{ranges.begin} * kAttentionRange / shape.block_tokens;
  task.k_tiles = cache.k_tiles() + first_tile;
  task.v_tiles = cache.v_tiles() + first_tile;
  task.rows = rows.data();
  task.num_rows = static_cast<std::uint32_t>(rows.size());
  task.scale = scale_of(shape);
  task.scratch = aligned;
  kernels.attend(task);
  REQUIRE(aligned[floats] == kUntouched);
}

/// The outputs of rows that one task computes, positions ascending.
std::vector<std::vector<float>> attend(const KernelTable& table, const Cache& cache,
                                       const std::vector<Row>& rows) {
  const std::size_t dims = cache.shape().head_dim;
  std::vector<std::vector<float>> out(rows.size(), std::vector<float>(dims + 1, kUntouched));
  std::vector<AttentionRow> task_rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    task_rows.push_back({rows[i].q.data(), rows[i].position, out[i].data(), nullptr});
  }
  call_kernel(table, cache, task_rows, ranges_of(rows.back().position));
  for (auto& row : out) {
    REQUIRE(row.back() == kUntouched);
    row.pop_back();
  }
  return out;
}
std::vector<float> attend_alone(const KernelTable& table, const Cache& cache, const Row& row) {
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
      partials_.emplace_back(ranges_of(row.position).end * floats_ + 1, kUntouched);
    }
  }
  /// One task of rows [begin, end), in the order of the permutation.
  void attend(const std::vector<std::size_t>& which, Ranges ranges) {
    std::vector<AttentionRow> task_rows;
    for (const std::size_t i : which) {
      task_rows.push_back({rows_[i].q.data(), rows_[i].position, nullptr, partials_[i].data()});
    }
    call_kernel(table_, cache_, task_rows, ranges);
  }
  std::vector<float> merged(std::size_t i) const {
    REQUIRE(partials_[i].back() == kUntouched);
    const std::uint32_t dims = cache_.shape().head_dim;
    std::vector<float> out(dims + 1, kUntouched);
    table_.attention_kernels->merge(partials_[i].data(), ranges_of(rows_[i].position).end, dims,
                                    out.data());
    REQUIRE(out.back() == kUntouched);
    out.pop_back();
    return out;
  }

 private:
  const KernelTable& table_;
  const Cache& cache_;
  std::vector<Row> rows_;
  std::size_t floats_;
  std::vector<std::vector<float>> partials_;
};

/// One row in the promised order, written plainly.
std::vector<float> attend_in_order(const KernelTable& table, const Cache& cache, const Row& row) {
  const Shape& shape = cache.shape();
  std::vector<float> total(shape.head_dim);
  float total_max = -kInfinity, total_sum = 0.0F;
  for (std::uint32_t begin = 0; begin <= row.position; begin += kAttentionRange) {
    const std::uint32_t count = std::min(kAttentionRange, row.position + 1 - begin);
    std::vector<float> weights(count);
    float largest = -kInfinity;
    for (std::uint32_t j = 0; j < count; ++j) {
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
    for (std::uint32_t j = 0; j < count; ++j) {
      weights[j] = table_exp(table, multiply_add(table.isa, weights[j], scale_of(shape), -max));
      lanes[j % 16] += weights[j];
    }
    const float sum = fold_lanes(lanes);
    std::vector<float> acc(shape.head_dim);
    for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
      for (std::uint32_t j = 0; j < count; ++j) {
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
void check_near_double(const Cache& cache, const Row& row, const std::vector<float>& out) {
  const Shape& shape = cache.shape();
  const double scale = static_cast<double>(scale_of(shape));
  std::vector<double> scores(row.position + 1);
  double largest = -std::numeric_limits<double>::infinity(), largest_magnitude = 0.0;
  for (std::uint32_t p = 0; p <= row.position; ++p) {
    double magnitude = 0.0;
    for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
      const double product = static_cast<double>(row.q[d]) * static_cast<double>(cache.k(p, d));
      scores[p] += product * scale;
      magnitude += std::fabs(product) * scale;
    }
    largest = std::max(largest, scores[p]);
    if (std::isfinite(magnitude)) largest_magnitude = std::max(largest_magnitude, magnitude);
  }
  // A score is off by 2 head_dim roundings of its magnitude and its difference to the maximum by
  // one more (and so the exponential by as much, relatively, plus its own 2 ulp); sums have at most
  // 2 roundings a position.
  const double score_error = (2.0 * shape.head_dim + 4.0) * kRounding * largest_magnitude;
  const double relative = 2.0 * score_error + (4.0 * row.position + 32.0) * kRounding;
  for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
    double sum = 0.0, exact = 0.0, magnitude = 0.0;
    for (std::uint32_t p = 0; p <= row.position; ++p) {
      const double e = std::exp(scores[p] - largest);
      const double v = static_cast<double>(cache.v(p, d));
      sum += e;
      exact += e * v;
      magnitude += e * std::fabs(v);
    }
    REQUIRE(std::fabs(static_cast<double>(out[d]) - exact / sum) <= relative * magnitude / sum);
  }
}

/// `num_rows` rows of queries with `group` heads each, the last at `last_position`.
std::vector<Row> consecutive_rows(const Shape& shape, std::uint32_t num_rows, std::uint32_t group,
                                  std::uint32_t last_position) {
  std::vector<Row> rows;
  for (std::uint32_t i = 0; i < num_rows; ++i) {
    rows.push_back(make_row(shape, last_position - (num_rows - 1 - i) / group, i));
  }
  return rows;
}

void check_company(const KernelTable& table, const Cache& cache, const std::vector<Row>& rows) {
  const auto together = attend(table, cache, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i << " of " << rows.size() << " at position " << rows[i].position);
    REQUIRE(same_bits(together[i], attend_alone(table, cache, rows[i])));
  }
}

}  // namespace

TEST_CASE("attention rows: a row alone follows the promised order, near the double result",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 1001, 21);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t position :
           {0U, 1U, 15U, 16U, 31U, 32U, 63U, 100U, 254U, 255U, 256U, 257U, 511U, 512U, 1000U}) {
        INFO("position " << position);
        const Row row = make_row(shape, position, position);
        const auto out = attend_alone(table, cache, row);
        check_near_double(cache, row, out);
        REQUIRE(same_bits(out, attend_in_order(table, cache, row)));
      }
    });
  }
}

TEST_CASE("attention rows: a row gives the same bits alone and in any company",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 530, 23);
    for_each_isa([&](const KernelTable& table) {
      // Decode: all at one position. Prefill: consecutive ones, over the border of a range. Others:
      // as far apart as may be.
      for (const std::uint32_t num_rows : {2U, 3U, 5U, 6U, 7U, 9U, 12U, 13U, 16U, 31U, 48U, 64U}) {
        check_company(table, cache, consecutive_rows(shape, num_rows, 64, 301));
        check_company(table, cache, consecutive_rows(shape, num_rows, 3, 261));
        check_company(table, cache, consecutive_rows(shape, num_rows, 1, 529));
        std::vector<Row> apart;
        for (std::uint32_t i = 0; i < num_rows; ++i) {
          apart.push_back(make_row(shape, i * 529 / (num_rows - 1), i));
        }
        check_company(table, cache, apart);
      }
    });
  }
}

TEST_CASE("attention rows: every number of rows", "[runtime][kernel]") {
  const Shape shape{KvElement::kF16, 32, 64};
  const Cache cache = filled_cache(shape, 300, 24);
  for_each_isa([&](const KernelTable& table) {
    const auto all = consecutive_rows(shape, kMaxAttentionRows, 2, 299);
    const auto expected = attend(table, cache, all);
    for (std::size_t num_rows = 1; num_rows < kMaxAttentionRows; ++num_rows) {
      const auto last = static_cast<std::ptrdiff_t>(num_rows);
      const auto out = attend(table, cache, {all.begin(), all.begin() + last});
      for (std::size_t i = 0; i < num_rows; ++i) REQUIRE(same_bits(out[i], expected[i]));
    }
  });
}

TEST_CASE("attention rows: ranges by several tasks, then merged, are one task",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 1030, 25);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t num_rows : {1U, 3U, 9U, 20U}) {
        // Four ranges and, for the last rows, the first positions of a fifth.
        const auto rows = consecutive_rows(shape, num_rows, 3, 1026);
        const auto whole = attend(table, cache, rows);
        std::vector<std::size_t> all(num_rows);
        for (std::size_t i = 0; i < num_rows; ++i) all[i] = i;
        for (const std::vector<std::uint32_t>& cuts : {std::vector<std::uint32_t>{0, 5},
                                                       {0, 1, 5},
                                                       {0, 4, 5},
                                                       {0, 2, 3, 5},
                                                       {0, 1, 2, 3, 4, 5}}) {
          Partials partials(table, cache, rows);
          // The last first: no task knows of another.
          for (std::size_t c = cuts.size() - 1; c-- > 0;) {
            partials.attend(all, {cuts[c], cuts[c + 1]});
          }
          for (std::size_t i = 0; i < num_rows; ++i) {
            REQUIRE(same_bits(partials.merged(i), whole[i]));
          }
        }
      }
    });
  }
}

TEST_CASE("attention rows: a prefix that sequences share gives what each alone gives",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 1030, 26);
    for_each_isa([&](const KernelTable& table) {
      // Positions in no order: all of them see the first two ranges whole.
      std::vector<Row> rows;
      for (const std::uint32_t position : {800U, 511U, 1029U, 512U, 777U, 600U, 768U, 1023U}) {
        rows.push_back(make_row(shape, position, position));
      }
      Partials partials(table, cache, rows);
      partials.attend({0, 1, 2, 3, 4, 5, 6, 7}, {0, 2});
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const Ranges own{2, ranges_of(rows[i].position).end};
        if (own.begin < own.end) partials.attend({i}, own);
        INFO("position " << rows[i].position);
        REQUIRE(same_bits(partials.merged(i), attend_alone(table, cache, rows[i])));
      }
    });
  }
}

TEST_CASE("attention rows: what lies behind a row never reaches it", "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache clean = filled_cache(shape, 290, 27);
    for (const float poison : {kNan, kInfinity, -kInfinity}) {
      for (const std::uint32_t group : {1U, 3U, 64U}) {
        const auto rows = consecutive_rows(shape, 40, group, 270);
        for (const std::uint32_t last_clean : {230U, 250U, 255U, 256U, 257U, 262U, 270U}) {
          Cache poisoned = filled_cache(shape, 290, 27);
          for (std::uint32_t p = last_clean + 1; p < 290; ++p) poisoned.fill(p, poison);
          for_each_isa([&](const KernelTable& table) {
            const auto expected = attend(table, clean, rows);
            // Rows behind the poison see it, those before it must not.
            const auto out = attend(table, poisoned, rows);
            for (std::size_t i = 0; i < rows.size(); ++i) {
              if (rows[i].position > last_clean) continue;
              INFO("row " << i << ", clean to " << last_clean);
              REQUIRE(same_bits(out[i], expected[i]));
              for (const float x : out[i]) REQUIRE(std::isfinite(x));
            }
          });
        }
      }
    }
  }
}

TEST_CASE("attention rows: ranges without a finite score change nothing", "[runtime][kernel]") {
  const Shape shape{KvElement::kF32, 32, 16};
  Cache cache = filled_cache(shape, 800, 31), infinite = filled_cache(shape, 800, 31);
  Numbers numbers(32);
  // The first range, half of the second, all of the third and what there is of the fourth. In whole
  // ranges not even an infinite V, times a weight of 0, comes through.
  const std::vector<float> lowest(shape.head_dim, -kInfinity), highest(shape.head_dim, kInfinity);
  for (std::uint32_t p = 0; p < 800; ++p) {
    if (p >= 256 + 128 && p < 512) continue;
    const auto v = numbers.floats(shape.head_dim);
    cache.put(p, lowest, v);
    infinite.put(p, lowest, p / kAttentionRange == 1 ? v : highest);
  }
  for_each_isa([&](const KernelTable& table) {
    const std::vector<float> ones(shape.head_dim, 1.0F);
    const Row row{799, ones};
    const auto out = attend_alone(table, cache, row);
    check_near_double(cache, row, out);
    CHECK(same_bits(out, attend_alone(table, cache, {511, ones})));
    for (const Cache* either : {&cache, &infinite}) {
      CHECK(same_bits(out, attend_alone(table, *either, row)));
      Partials partials(table, *either, {row});
      partials.attend({0}, {0, 4});
      CHECK(same_bits(partials.merged(0), out));
    }
  });
}

TEST_CASE("attention rows: a NaN that a row does see is not hidden", "[runtime][kernel]") {
  const Shape shape{KvElement::kF16, 32, 64};
  for (const std::uint32_t num_nans : {1U, 256U}) {  // a whole range, too, is no empty one
    Cache cache = filled_cache(shape, 600, 33);
    for (std::uint32_t p = 0; p < num_nans; ++p) cache.fill(256 + p, kNan);
    for_each_isa([&](const KernelTable& table) {
      CHECK(std::isnan(attend_alone(table, cache, make_row(shape, 599, 1))[0]));
      CHECK(std::isnan(attend_alone(table, cache, make_row(shape, 256, 1))[0]));
      CHECK_FALSE(std::isnan(attend_alone(table, cache, make_row(shape, 255, 1))[0]));
    });
  }
}

TEST_CASE("attention rows: AVX2 and AVX-512 agree to the bit", "[runtime][kernel]") {
  if (!cpu_supports(Isa::kAvx512)) return;
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 600, 34);
    for (const std::uint32_t num_rows : {1U, 5U, 21U}) {
      const auto rows = consecutive_rows(shape, num_rows, 3, 599);
      const auto narrow = attend(kernels_for(Isa::kAvx2), cache, rows);
      const auto wide = attend(kernels_for(Isa::kAvx512), cache, rows);
      for (std::size_t i = 0; i < num_rows; ++i) CHECK(same_bits(narrow[i], wide[i]));
    }
  }
}
