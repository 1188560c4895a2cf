// Attention of rows in any company, on every instruction set of this machine: the promised order
// bit by bit, the double result within what rounding may do, and nothing of what lies behind a row.
#include "tests/runtime/kernels/attention_cases.h"

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

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
        const Ranges own{2, ranges_of(rows[i]).end};
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
    const Row row{799, ones, 0};
    const auto out = attend_alone(table, cache, row);
    check_near_double(cache, row, out);
    CHECK(same_bits(out, attend_alone(table, cache, {511, ones, 0})));
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
