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

struct Shape {
  KvElement element = KvElement::kF16;
  std::uint32_t block_tokens = 32, head_dim = 64, heads = 3;
};

std::size_t element_bytes(KvElement element) { return element == KvElement::kF32 ? 4 : 2; }

/// The KV cache of one sequence and one KV head, in blocks. Whatever was not stored is NaN.
class Cache {
 public:
  Cache(const Shape& shape, std::uint32_t num_positions)
      : shape_(shape),
        tile_bytes_(std::size_t{shape.head_dim} * shape.block_tokens *
                    element_bytes(shape.element)) {
    const std::size_t num_blocks = num_positions / shape.block_tokens + 1;
    for (std::size_t b = 0; b < num_blocks; ++b) {
      // All bits set: a NaN in each of the three element types. One allocation each, so that ASan
      // sees overreads.
      for (auto* tiles : {&k_, &v_}) {
        tiles->push_back(std::make_unique<std::byte[]>(tile_bytes_));
        std::fill_n(tiles->back().get(), tile_bytes_, std::byte{0xFF});
      }
      k_tiles_.push_back(k_.back().get());
      v_tiles_.push_back(v_.back().get());
    }
  }

  void put(std::uint32_t position, const float* k, const float* v) {
    const std::uint32_t b = position / shape_.block_tokens;
    kernels_for(Isa::kScalar)
        .store_kv(shape_.element, k, v, k_[b].get(), v_[b].get(), shape_.head_dim,
                  shape_.block_tokens, position % shape_.block_tokens);
  }
  void poison(std::uint32_t position) {
    const std::vector<float> nan(shape_.head_dim, kNan);
    put(position, nan.data(), nan.data());
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
  std::size_t tile_bytes_;
  std::vector<std::unique_ptr<std::byte[]>> k_, v_;
  std::vector<const std::byte*> k_tiles_, v_tiles_;
};

/// A cache filled with seeded keys and values at [0, num_positions).
Cache filled_cache(const Shape& shape, std::uint32_t num_positions, std::uint32_t seed) {
  Cache cache(shape, num_positions);
  Numbers numbers(seed);
  for (std::uint32_t p = 0; p < num_positions; ++p) {
    const auto k = numbers.floats(shape.head_dim, 2.0F), v = numbers.floats(shape.head_dim);
    cache.put(p, k.data(), v.data());
  }
  return cache;
}

/// out[num_queries, heads, head_dim] of queries at first_position..., q laid out likewise.
std::vector<float> attend(const KernelTable& table, const Cache& cache, const float* q,
                          std::uint32_t first_position, std::uint32_t num_queries,
                          std::uint32_t num_heads, std::size_t q_stride) {
  const Shape& shape = cache.shape();
  const std::size_t row = std::size_t{num_heads} * shape.head_dim;
  std::vector<float> out(num_queries * row + 1, -7.0F);
  std::vector<float> scratch(
      table.attention_scratch_floats(shape.head_dim, num_heads, shape.block_tokens) + 16, kNan);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(scratch.data()) % 64 / 4;
  OldAttentionTask task;
  task.element = shape.element;
  task.k_tiles = cache.k_tiles();
  task.v_tiles = cache.v_tiles();
  task.block_tokens = shape.block_tokens;
  task.head_dim = shape.head_dim;
  task.num_group_heads = num_heads;
  task.first_position = first_position;
  task.num_queries = num_queries;
  task.q = q;
  task.q_stride = q_stride;
  task.out = out.data();
  task.out_stride = row;
  task.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  task.scratch = scratch.data() + (16 - misaligned) % 16;
  table.attention(task);
  REQUIRE(out.back() == -7.0F);
  out.pop_back();
  return out;
}

std::vector<float> attend_all(const KernelTable& table, const Cache& cache,
                              const std::vector<float>& q, std::uint32_t first_position,
                              std::uint32_t num_queries) {
  const Shape& shape = cache.shape();
  return attend(table, cache, q.data(), first_position, num_queries, shape.heads,
                std::size_t{shape.heads} * shape.head_dim);
}

float scale_of(const Shape& shape) { return 1.0F / std::sqrt(static_cast<float>(shape.head_dim)); }

/// One query and head in the promised order, written plainly.
std::vector<float> attend_in_order(const KernelTable& table, const Cache& cache, const float* q,
                                   std::uint32_t position) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const Shape& shape = cache.shape();
  const Isa isa = table.isa;
  struct State {
    float max = kLowest, sum = 0.0F;
    std::vector<float> acc;
  };
  State total;
  total.acc.assign(shape.head_dim, 0.0F);
  for (std::uint32_t range = 0; range <= position; range += kAttentionRange) {
    State state;
    state.acc.assign(shape.head_dim, 0.0F);
    for (std::uint32_t begin = range; begin < range + kAttentionRange && begin <= position;
         begin += shape.block_tokens) {
      const std::uint32_t valid = std::min(shape.block_tokens, position + 1 - begin);
      std::vector<float> p(valid);
      float new_max = state.max;
      for (std::uint32_t j = 0; j < valid; ++j) {
        float score = 0.0F;
        for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
          score = multiply_add(isa, q[d], cache.k(begin + j, d), score);
        }
        p[j] = score * scale_of(shape);
        new_max = std::max(new_max, p[j]);
      }
      if (new_max == kLowest) continue;
      float lanes[16] = {};
      for (std::uint32_t j = 0; j < valid; ++j) {
        p[j] = table_exp(table, p[j] - new_max);
        lanes[j % 16] += p[j];
      }
      const float correction = table_exp(table, state.max - new_max);
      state.max = new_max;
      state.sum = state.sum * correction + fold_lanes(lanes);
      for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
        float acc = state.acc[d] * correction;
        for (std::uint32_t j = 0; j < valid; ++j) {
          acc = multiply_add(isa, p[j], cache.v(begin + j, d), acc);
        }
        state.acc[d] = acc;
      }
    }
    if (state.max == kLowest) continue;
    const float new_max = std::max(total.max, state.max);
    const float keep = table_exp(table, total.max - new_max);
    const float take = table_exp(table, state.max - new_max);
    total.max = new_max;
    total.sum = total.sum * keep + state.sum * take;
    for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
      total.acc[d] = total.acc[d] * keep + state.acc[d] * take;
    }
  }
  for (float& x : total.acc) x /= total.sum;
  return total.acc;
}

/// One query and head in double precision, with the error that rounding may make of each output.
void check_near_double(const Cache& cache, const float* q, std::uint32_t position,
                       const float* out) {
  const Shape& shape = cache.shape();
  const double scale = static_cast<double>(scale_of(shape));
  std::vector<double> scores(position + 1);
  double largest = -std::numeric_limits<double>::infinity(), largest_magnitude = 0.0;
  for (std::uint32_t p = 0; p <= position; ++p) {
    double magnitude = 0.0;
    for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
      const double product = static_cast<double>(q[d]) * static_cast<double>(cache.k(p, d));
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
  const double relative = 2.0 * score_error + (4.0 * position + 32.0) * kRounding;
  for (std::uint32_t d = 0; d < shape.head_dim; ++d) {
    double sum = 0.0, exact = 0.0, magnitude = 0.0;
    for (std::uint32_t p = 0; p <= position; ++p) {
      const double e = std::exp(scores[p] - largest);
      const double v = static_cast<double>(cache.v(p, d));
      sum += e;
      exact += e * v;
      magnitude += e * std::fabs(v);
    }
    REQUIRE(std::fabs(static_cast<double>(out[d]) - exact / sum) <= relative * magnitude / sum);
  }
}

const Shape kShapes[] = {
    {KvElement::kF32, 16, 8, 1},   {KvElement::kF32, 32, 64, 3},  {KvElement::kF32, 64, 24, 2},
    {KvElement::kF16, 16, 80, 5},  {KvElement::kF16, 32, 64, 3},  {KvElement::kF16, 64, 128, 4},
    {KvElement::kBf16, 32, 24, 7}, {KvElement::kBf16, 16, 64, 1},
};

std::string describe(const Shape& shape) {
  return "element " + std::to_string(static_cast<int>(shape.element)) + ", block " +
         std::to_string(shape.block_tokens) + ", head_dim " + std::to_string(shape.head_dim) +
         ", heads " + std::to_string(shape.heads);
}

}  // namespace

TEST_CASE("attention: a query alone follows the promised order bit by bit, near the double result",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache full = filled_cache(shape, 530, 21);
    Numbers numbers(22);
    const auto q = numbers.floats(std::size_t{shape.heads} * shape.head_dim, 2.0F);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t position :
           {0U, 1U, 15U, 16U, 31U, 32U, 100U, 254U, 255U, 256U, 257U, 511U, 512U, 529U}) {
        INFO("position " << position);
        const auto out = attend_all(table, full, q, position, 1);
        for (std::uint32_t h = 0; h < shape.heads; ++h) {
          const float* head_q = q.data() + std::size_t{h} * shape.head_dim;
          const float* head_out = out.data() + std::size_t{h} * shape.head_dim;
          check_near_double(full, head_q, position, head_out);
          const auto expected = attend_in_order(table, full, head_q, position);
          CHECK(same_bits({head_out, head_out + shape.head_dim}, expected));
        }
      }
    });
  }
}

TEST_CASE("attention: a query gives the same bits alone and in any chunk", "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    constexpr std::uint32_t kFirst = 230, kQueries = 70;  // crosses a range and several blocks
    const Cache cache = filled_cache(shape, kFirst + kQueries, 23);
    const std::size_t row = std::size_t{shape.heads} * shape.head_dim;
    Numbers numbers(24);
    const auto q = numbers.floats(kQueries * row, 2.0F);
    for_each_isa([&](const KernelTable& table) {
      const auto whole = attend_all(table, cache, q, kFirst, kQueries);
      for (std::uint32_t i = 0; i < kQueries; ++i) {
        const auto alone =
            attend(table, cache, q.data() + i * row, kFirst + i, 1, shape.heads, row);
        INFO("query " << i);
        REQUIRE(same_bits(alone, {whole.begin() + static_cast<std::ptrdiff_t>(i * row),
                                  whole.begin() + static_cast<std::ptrdiff_t>((i + 1) * row)}));
      }
      for (const std::uint32_t cut : {1U, 2U, 25U, 26U, 27U, 69U}) {
        auto parts = attend_all(table, cache, q, kFirst, cut);
        const auto rest = attend(table, cache, q.data() + cut * row, kFirst + cut, kQueries - cut,
                                 shape.heads, row);
        parts.insert(parts.end(), rest.begin(), rest.end());
        INFO("cut at " << cut);
        REQUIRE(same_bits(parts, whole));
      }
    });
  }
}

TEST_CASE("attention: a head gives the same bits alone and in its group", "[runtime][kernel]") {
  const Shape shape{KvElement::kF16, 32, 64, 9};
  const Cache cache = filled_cache(shape, 300, 25);
  const std::size_t row = std::size_t{shape.heads} * shape.head_dim;
  Numbers numbers(26);
  const auto q = numbers.floats(5 * row, 2.0F);
  for_each_isa([&](const KernelTable& table) {
    const auto group = attend_all(table, cache, q, 290, 5);
    for (std::uint32_t h = 0; h < shape.heads; ++h) {
      const auto alone = attend(table, cache, q.data() + h * shape.head_dim, 290, 5, 1, row);
      for (std::size_t i = 0; i < 5; ++i) {
        for (std::size_t d = 0; d < shape.head_dim; ++d) {
          REQUIRE(bits_of(alone[i * shape.head_dim + d]) ==
                  bits_of(group[i * row + h * shape.head_dim + d]));
        }
      }
    }
  });
}

TEST_CASE("attention: more heads than rows in flight", "[runtime][kernel]") {
  const Shape shape{KvElement::kF32, 16, 8, 71};
  const Cache cache = filled_cache(shape, 40, 27);
  Numbers numbers(28);
  const std::size_t row = std::size_t{shape.heads} * shape.head_dim;
  const auto q = numbers.floats(3 * row);
  for_each_isa([&](const KernelTable& table) {
    const auto out = attend_all(table, cache, q, 37, 3);
    for (std::uint32_t i = 0; i < 3; ++i) {
      for (std::uint32_t h = 0; h < shape.heads; ++h) {
        const std::size_t at = i * row + h * shape.head_dim;
        check_near_double(cache, q.data() + at, 37 + i, out.data() + at);
      }
    }
  });
}

TEST_CASE("attention: what lies behind a query never reaches it", "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    constexpr std::uint32_t kPositions = 290;
    const std::size_t row = std::size_t{shape.heads} * shape.head_dim;
    Numbers numbers(29);
    const auto q = numbers.floats(row, 2.0F);
    for (const std::uint32_t position : {0U, 14U, 17U, 63U, 255U, 256U, 270U}) {
      INFO("position " << position);
      const Cache clean = filled_cache(shape, kPositions, 30);
      Cache poisoned = filled_cache(shape, kPositions, 30);
      for (std::uint32_t p = position + 1; p < kPositions; ++p) poisoned.poison(p);
      for_each_isa([&](const KernelTable& table) {
        const auto expected = attend_all(table, clean, q, position, 1);
        for (const float x : expected) REQUIRE(std::isfinite(x));
        CHECK(same_bits(attend_all(table, poisoned, q, position, 1), expected));
      });
    }
  }
}

TEST_CASE("attention: ranges without a finite score change nothing", "[runtime][kernel]") {
  const Shape shape{KvElement::kF32, 32, 16, 1};
  const std::vector<float> q(shape.head_dim, 1.0F);
  const std::vector<float> lowest(shape.head_dim, -std::numeric_limits<float>::infinity());
  Cache cache = filled_cache(shape, 600, 31);
  Numbers numbers(32);
  // The first range, the first block of the second and all of the third have scores of -inf.
  for (std::uint32_t p = 0; p < 600; ++p) {
    if (p < 256 + 32 || p >= 512) {
      const auto v = numbers.floats(shape.head_dim);
      cache.put(p, lowest.data(), v.data());
    }
  }
  for_each_isa([&](const KernelTable& table) {
    const auto out = attend_all(table, cache, q, 599, 1);
    check_near_double(cache, q.data(), 599, out.data());
    CHECK(same_bits(out, attend_all(table, cache, q, 511, 1)));  // the last range adds nothing
  });
}

TEST_CASE("attention: a NaN that a query does see is not hidden", "[runtime][kernel]") {
  const Shape shape{KvElement::kF16, 32, 64, 1};
  Cache cache = filled_cache(shape, 40, 33);
  cache.poison(5);
  const std::vector<float> q(shape.head_dim, 0.5F);
  for_each_isa([&](const KernelTable& table) {
    CHECK(std::isnan(attend_all(table, cache, q, 39, 1)[0]));
    CHECK_FALSE(std::isnan(attend_all(table, cache, q, 4, 1)[0]));
  });
}

TEST_CASE("attention: AVX2 and AVX-512 agree to the bit", "[runtime][kernel]") {
  if (!cpu_supports(Isa::kAvx512)) return;
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 300, 34);
    Numbers numbers(35);
    const auto q = numbers.floats(std::size_t{7} * shape.heads * shape.head_dim, 2.0F);
    CHECK(same_bits(attend_all(kernels_for(Isa::kAvx2), cache, q, 290, 7),
                    attend_all(kernels_for(Isa::kAvx512), cache, q, 290, 7)));
  }
}
