#include "runtime/thread_pool.h"

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

TEST_CASE("ThreadPool: every run calls the task once on every worker and returns after all",
          "[runtime]") {
  for (const std::uint32_t num_threads : {1U, 2U, 3U, 8U}) {
    ThreadPool pool(num_threads);
    REQUIRE(pool.num_threads() == num_threads);
    // Plain integers: what workers wrote must be visible after run(), and TSan watches.
    std::vector<std::uint64_t> calls(std::size_t{num_threads} * 16);
    const std::uint64_t num_runs = 2000;
    for (std::uint64_t run = 0; run < num_runs; ++run) {
      pool.run([&](std::uint32_t worker) { calls[std::size_t{worker} * 16] += run + 1; });
      for (std::uint32_t worker = 0; worker < num_threads; ++worker) {
        REQUIRE(calls[std::size_t{worker} * 16] == (run + 1) * (run + 2) / 2);
      }
    }
  }
}

TEST_CASE("ThreadPool: a slow worker is waited for", "[runtime]") {
  ThreadPool pool(2);
  for (int run = 0; run < 20; ++run) {
    std::uint64_t sum = 0;
    std::atomic<bool> caller_done{false};
    pool.run([&](std::uint32_t worker) {
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

TEST_CASE("ThreadPool: pools come and go without a run", "[runtime]") {
  for (int i = 0; i < 50; ++i) {
    const ThreadPool pool(4);
    REQUIRE(pool.num_threads() == 4);
  }
}
