#include "runtime/worker_team.h"

#include "tests/support/catch.h"

#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

using namespace kvasir::runtime;

TEST_CASE("split_range: parts are in order, whole granules, and differ by at most one",
          "[runtime]") {
  for (const std::size_t count : {0U, 1U, 4U, 5U, 63U, 64U, 1000U}) {
    for (const std::size_t granule : {1U, 4U, 16U}) {
      for (const std::uint32_t parts : {1U, 2U, 3U, 7U, 64U}) {
        INFO(count << " items, granule " << granule << ", " << parts << " parts");
        std::size_t next = 0, smallest = SIZE_MAX, largest = 0;
        for (std::uint32_t i = 0; i < parts; ++i) {
          const WorkRange range = split_range(count, granule, i, parts);
          REQUIRE(range.begin == next);
          REQUIRE(range.end >= range.begin);
          if (range.end != count) REQUIRE(range.end % granule == 0);
          next = range.end;
          const std::size_t granules = (range.end - range.begin + granule - 1) / granule;
          smallest = std::min(smallest, granules);
          largest = std::max(largest, granules);
        }
        REQUIRE(next == count);
        REQUIRE(largest - smallest <= 1);
      }
    }
  }
}

TEST_CASE("WorkerTeam: every run calls the task once on every worker and returns after all",
          "[runtime]") {
  for (const std::uint32_t num_threads : {1U, 2U, 3U, 8U}) {
    WorkerTeam team(num_threads);
    REQUIRE(team.num_threads() == num_threads);
    // Plain integers: what workers wrote must be visible after run(), and TSan watches.
    std::vector<std::uint64_t> calls(std::size_t{num_threads} * 16);
    const std::uint64_t num_runs = 2000;
    for (std::uint64_t run = 0; run < num_runs; ++run) {
      team.run([&](std::uint32_t worker) { calls[std::size_t{worker} * 16] += run + 1; });
      for (std::uint32_t worker = 0; worker < num_threads; ++worker) {
        REQUIRE(calls[std::size_t{worker} * 16] == (run + 1) * (run + 2) / 2);
      }
    }
  }
}

TEST_CASE("WorkerTeam: a slow worker is waited for", "[runtime]") {
  WorkerTeam team(2);
  for (int run = 0; run < 20; ++run) {
    std::uint64_t sum = 0;
    std::atomic<bool> caller_done{false};
    team.run([&](std::uint32_t worker) {
      if (worker == 0) {
        caller_done.store(true);
        return;
      }
      // Starts its work only when the caller has ended its own, and outlasts the caller's spinning.
      while (!caller_done.load()) {
      }
      std::uint64_t x = 0;
      for (std::uint64_t i = 0; i < 200'000; ++i) x += i * i % 7;
      sum = x + 1;
    });
    REQUIRE(sum > 0);
  }
}

TEST_CASE("WorkerTeam: teams come and go without a run", "[runtime]") {
  for (int i = 0; i < 50; ++i) {
    const WorkerTeam team(4);
    REQUIRE(team.num_threads() == 4);
  }
}

TEST_CASE("WorkerTeam: what workers wrote before sync is what all read after it", "[runtime]") {
  for (const std::uint32_t num_threads : {1U, 2U, 3U, 8U}) {
    WorkerTeam team(num_threads);
    std::vector<std::uint32_t> written(std::size_t{num_threads} * 16);  // plain: TSan watches
    std::vector<std::uint32_t> wrong(std::size_t{num_threads} * 16);
    for (std::uint32_t run = 0; run < 20; ++run) {
      team.run([&](std::uint32_t worker) {
        for (std::uint32_t phase = 1; phase <= 50; ++phase) {
          written[std::size_t{worker} * 16] = run * 100 + phase;
          team.sync();
          for (std::uint32_t other = 0; other < num_threads; ++other) {
            if (written[std::size_t{other} * 16] != run * 100 + phase) {
              ++wrong[std::size_t{worker} * 16];
            }
          }
          team.sync();
        }
      });
    }
    CHECK(std::accumulate(wrong.begin(), wrong.end(), 0U) == 0);
  }
}

TEST_CASE("WorkerTeam: a worker that outlasts the others' spinning is waited for in sync",
          "[runtime]") {
  WorkerTeam team(3);
  for (int run = 0; run < 5; ++run) {
    std::uint64_t sum = 0;
    std::vector<std::uint64_t> seen(3);
    team.run([&](std::uint32_t worker) {
      if (worker == 2) {
        std::uint64_t x = 0;
        for (std::uint64_t i = 0; i < 2'000'000; ++i) x += i * i % 7;
        sum = x + 1;
      }
      team.sync();
      seen[worker] = sum;
    });
    for (const std::uint64_t value : seen) CHECK((value > 0 && value == sum));
  }
}
