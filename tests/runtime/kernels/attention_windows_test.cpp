// Attention of rows that see a window: the promised order bit by bit, the double result within what
// rounding may do, in any company and in any parts, on every instruction set of this machine; and
// nothing of what lies before the window, which may be gone.
#include "tests/runtime/kernels/attention_cases.h"

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

// Within a tile and a range, over their borders, and larger than what there is.
constexpr std::uint32_t kWindows[] = {1, 2, 15, 16, 33, 100, 255, 256, 257, 511, 512, 513, 2000};

/// Rows as far apart as may be: some begin where others have ended.
std::vector<Row> rows_apart(const Shape& shape, std::uint32_t num_rows, std::uint32_t last_position,
                            std::uint32_t window) {
  std::vector<Row> rows;
  for (std::uint32_t i = 0; i < num_rows; ++i) {
    rows.push_back(make_row(shape, i * last_position / (num_rows - 1), i, window));
  }
  return rows;
}

}  // namespace

TEST_CASE("attention windows: a row alone follows the promised order, near the double result",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 768, 41);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t window : kWindows) {
        for (const std::uint32_t position : {0U, 40U, 255U, 256U, 530U, 767U}) {
          INFO("window " << window << ", position " << position);
          const Row row = make_row(shape, position, position, window);
          const auto out = attend_alone(table, cache, row);
          check_near_double(cache, row, out);
          REQUIRE(same_bits(out, attend_in_order(table, cache, row)));
        }
      }
    });
  }
}

TEST_CASE("attention windows: a row gives the same bits alone and in any company",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 900, 43);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t window : {1U, 7U, 40U, 250U, 512U}) {
        for (const std::uint32_t num_rows : {2U, 5U, 6U, 13U, 31U, 64U}) {
          INFO("window " << window);
          // The windows' beginnings, or their ends, or neither, are over the border of a range.
          check_company(table, cache, consecutive_rows(shape, num_rows, 3, 261, window));
          check_company(table, cache,
                        consecutive_rows(shape, num_rows, 4, 520 + window / 2, window));
          check_company(table, cache, consecutive_rows(shape, num_rows, 1, 255 + window, window));
          check_company(table, cache, rows_apart(shape, num_rows, 899, window));
        }
      }
    });
  }
}

TEST_CASE("attention windows: ranges by several tasks, then merged, are one task",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 1300, 45);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t window : {3U, 300U, 512U, 700U}) {
        for (const std::uint32_t num_rows : {1U, 3U, 20U}) {
          for (const std::uint32_t last : {1026U, 1280U}) {
            const auto rows = consecutive_rows(shape, num_rows, 3, last, window);
            const auto whole = attend(table, cache, rows);
            std::vector<std::size_t> all(num_rows);
            for (std::size_t i = 0; i < num_rows; ++i) all[i] = i;
            Partials partials(table, cache, rows);
            // The last first: no task knows of another.
            for (std::uint32_t r = ranges_of(rows).end; r-- > ranges_of(rows).begin;) {
              partials.attend(all, {r, r + 1});
            }
            for (std::size_t i = 0; i < num_rows; ++i) {
              INFO("window " << window << ", row " << i);
              REQUIRE(same_bits(partials.merged(i), whole[i]));
            }
          }
        }
      }
    });
  }
}

TEST_CASE("attention windows: one that covers all positions changes no bit", "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    const Cache cache = filled_cache(shape, 600, 46);
    for_each_isa([&](const KernelTable& table) {
      for (const std::uint32_t position : {0U, 100U, 255U, 256U, 599U}) {
        const auto all = attend_alone(table, cache, make_row(shape, position, 1));
        REQUIRE(same_bits(all, attend_alone(table, cache, make_row(shape, position, 1, 600))));
        if (position == 0) continue;
        REQUIRE_FALSE(
            same_bits(all, attend_alone(table, cache, make_row(shape, position, 1, position))));
      }
    });
  }
}

TEST_CASE("attention windows: what lies before or behind a row's window never reaches it",
          "[runtime][kernel]") {
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache clean = filled_cache(shape, 620, 47);
    for (const float poison : {kNan, kInfinity, -kInfinity}) {
      for (const std::uint32_t window : {5U, 64U, 290U}) {
        for (const std::uint32_t group : {1U, 3U, 64U}) {
          const auto rows = consecutive_rows(shape, 40, group, 570, window);
          // All before the first row's window, then also some positions of those that follow.
          for (const std::uint32_t gone : {0U, 1U, 9U, 30U}) {
            const std::uint32_t first_clean = rows.front().first + gone;
            Cache poisoned = filled_cache(shape, 620, 47);
            for (std::uint32_t p = 0; p < 620; ++p) {
              if (p < first_clean || p > 565) poisoned.fill(p, poison);
            }
            for_each_isa([&](const KernelTable& table) {
              const auto expected = attend(table, clean, rows);
              const auto out = attend(table, poisoned, rows);
              for (std::size_t i = 0; i < rows.size(); ++i) {
                if (rows[i].first < first_clean || rows[i].position > 565) continue;
                INFO("row " << i << ", window " << window << ", clean from " << first_clean);
                REQUIRE(same_bits(out[i], expected[i]));
                for (const float x : out[i]) REQUIRE(std::isfinite(x));
              }
            });
          }
        }
      }
    }
  }
}

TEST_CASE("attention windows: ranges without a finite score change nothing", "[runtime][kernel]") {
  const Shape shape{KvElement::kF32, 32, 16};
  Cache cache = filled_cache(shape, 800, 48);
  Numbers numbers(49);
  const std::vector<float> lowest(shape.head_dim, -kInfinity);
  for (std::uint32_t p = 0; p < 800; ++p) {
    if (p < 384 || p >= 512) cache.put(p, lowest, numbers.floats(shape.head_dim));
  }
  for_each_isa([&](const KernelTable& table) {
    const std::vector<float> ones(shape.head_dim, 1.0F);
    for (const std::uint32_t first : {1U, 200U, 300U, 384U}) {
      const Row row{799, ones, first};
      const auto out = attend_alone(table, cache, row);
      check_near_double(cache, row, out);
      CHECK(same_bits(out, attend_alone(table, cache, {511, ones, 384})));
      Partials partials(table, cache, {row});
      partials.attend({0}, ranges_of(row));
      CHECK(same_bits(partials.merged(0), out));
    }
  });
}

TEST_CASE("attention windows: AVX2 and AVX-512 agree to the bit", "[runtime][kernel]") {
  if (!cpu_supports(Isa::kAvx512)) return;
  for (const Shape& shape : kShapes) {
    INFO(describe(shape));
    const Cache cache = filled_cache(shape, 600, 50);
    for (const std::uint32_t window : {31U, 300U}) {
      const auto rows = consecutive_rows(shape, 21, 3, 599, window);
      const auto narrow = attend(kernels_for(Isa::kAvx2), cache, rows);
      const auto wide = attend(kernels_for(Isa::kAvx512), cache, rows);
      for (std::size_t i = 0; i < rows.size(); ++i) CHECK(same_bits(narrow[i], wide[i]));
    }
  }
}
