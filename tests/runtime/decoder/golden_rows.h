// Compares a model with the rows of a golden *-logits file: recorded positions of the prompt, the
// recorded continuation fed back ("teacher-forced"), and the free greedy continuation.
#pragma once

#include "tests/runtime/decoder/run_sequences.h"
#include "tests/runtime/decoder/test_models.h"

#include <cstddef>
#include <string>

namespace kvasir::runtime::test {

/// What the comparison found; the test says what is allowed.
struct GoldenReport {
  std::size_t num_logprobs =
      0;  // compared: the top 20 of each position, and each step's token and runner-up
  double worst_logprob_difference = 0.0;
  double sum_logprob_difference = 0.0;  // absolute
  std::size_t num_top_logprobs = 0;     // of the recorded top 20 alone
  double sum_top_logprob_difference = 0.0;
  std::size_t num_tops = 0;          // positions whose best token was compared
  std::size_t num_tops_skipped = 0;  // their margin is below the one asked for
  std::size_t num_tops_wrong = 0;
  std::size_t num_free_rows = 0;        // rows continued freely
  std::size_t num_free_rows_equal = 0;  // to their very end, whatever the margins
  std::size_t num_free_steps = 0;       // compared: up to the first step whose margin is too small
  std::size_t num_free_steps_skipped = 0;
  std::size_t num_free_steps_wrong = 0;
  std::string first_wrong;  // row and step, for the message

  [[nodiscard]] double mean_top_logprob_difference() const {
    return num_top_logprobs == 0
               ? 0.0
               : sum_top_logprob_difference / static_cast<double>(num_top_logprobs);
  }
  [[nodiscard]] double mean_logprob_difference() const {
    return num_logprobs == 0 ? 0.0 : sum_logprob_difference / static_cast<double>(num_logprobs);
  }
};

/// Positions and steps with a margin of at least `min_margin` are compared for their token; all for
/// their logprobs. `only_row`: of the row with this name alone.
GoldenReport compare_with_golden(const TestModel& model, const RunOptions& options,
                                 const std::string& golden_file, double min_margin,
                                 const std::string& only_row = "");

/// One line for the log.
std::string describe(const GoldenReport& report);

}  // namespace kvasir::runtime::test
