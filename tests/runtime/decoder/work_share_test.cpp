// Shares of a step's work: every row and unit has exactly one worker, whatever the numbers.
#include "runtime/model/work_share.h"

#include "tests/support/catch.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace kvasir::runtime;

namespace {

std::vector<WorkShare> shares(std::size_t num_rows, std::uint32_t num_threads) {
  std::vector<WorkShare> all;
  for (std::uint32_t worker = 0; worker < num_threads; ++worker) {
    all.push_back(work_share(num_rows, worker, num_threads));
    CHECK(all.back().worker == worker);
  }
  return all;
}

std::uint32_t groups_of(std::size_t num_rows, std::uint32_t num_threads) {
  return num_threads / work_share(num_rows, 0, num_threads).parts;
}

}  // namespace

TEST_CASE("WorkShare: each unit of each row is one worker's, each row is prepared by one",
          "[runtime]") {
  for (const std::uint32_t num_threads : {1U, 2U, 3U, 4U, 6U, 16U}) {
    for (const std::size_t num_rows : {1U, 2U, 5U, 31U, 32U, 33U, 128U, 513U}) {
      for (const std::size_t num_units : {1U, 3U, 18U, 49U}) {
        INFO(num_threads << " threads, " << num_rows << " rows, " << num_units << " units");
        std::set<std::pair<std::size_t, std::size_t>> seen;
        std::set<std::size_t> prepared;
        std::size_t num_seen = 0, num_prepared = 0;
        for (const WorkShare& share : shares(num_rows, num_threads)) {
          REQUIRE(share.rows.end <= num_rows);
          const WorkRange units = share.units(num_units);
          for (std::size_t row = share.rows.begin; row < share.rows.end; ++row) {
            for (std::size_t unit = units.begin; unit < units.end; ++unit) {
              seen.emplace(row, unit);
              ++num_seen;
            }
          }
          const WorkRange own = share.own_rows();
          REQUIRE(own.begin >= share.rows.begin);
          REQUIRE(own.end <= share.rows.end);
          for (std::size_t row = own.begin; row < own.end; ++row) prepared.insert(row);
          num_prepared += own.end - own.begin;
        }
        CHECK(seen.size() == num_rows * num_units);
        CHECK(num_seen == seen.size());
        CHECK(prepared.size() == num_rows);
        CHECK(num_prepared == num_rows);
      }
    }
  }
}

TEST_CASE("WorkShare: a step is cut by rows only where each group has many", "[runtime]") {
  CHECK(groups_of(31, 2) == 1);
  CHECK(groups_of(32, 2) == 2);
  CHECK(groups_of(100'000, 1) == 1);
  CHECK(groups_of(71, 3) == 1);
  CHECK(groups_of(72, 3) == 3);
  CHECK(groups_of(127, 4) == 2);
  CHECK(groups_of(128, 4) == 4);
  CHECK(groups_of(512, 16) == 8);
  CHECK(groups_of(512, 7) == 7);
  CHECK(groups_of(512, 11) == 1);  // a prime number of threads with too few rows
}

TEST_CASE("column_share: one group has all rows", "[runtime]") {
  for (std::uint32_t worker = 0; worker < 4; ++worker) {
    const WorkShare share = column_share(512, worker, 4);
    CHECK(share.rows.begin == 0);
    CHECK(share.rows.end == 512);
    CHECK(share.parts == 4);
    CHECK(share.part == worker);
  }
}
