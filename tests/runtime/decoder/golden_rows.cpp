#include "tests/runtime/decoder/golden_rows.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace kvasir::runtime::test {
namespace {

using Json = nlohmann::json;

std::vector<Json> read_lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no golden file at " + path);
  std::vector<Json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(Json::parse(line));
  return rows;
}

std::vector<TokenId> ids_of(const Json& array) { return array.get<std::vector<TokenId>>(); }

/// Logprobs of one row in double, independently of the sampler's.
class Distribution {
 public:
  explicit Distribution(const std::vector<float>& logits) : logits_(logits) {
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
    logsumexp_ = max + std::log(sum);
  }
  [[nodiscard]] double logprob(TokenId id) const {
    return static_cast<double>(logits_[id]) - logsumexp_;
  }
  [[nodiscard]] TokenId best() const {
    return static_cast<TokenId>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
  }

 private:
  const std::vector<float>& logits_;
  double logsumexp_ = 0.0;
};

class RowComparison {
 public:
  RowComparison(const Json& row, double min_margin, GoldenReport& report)
      : row_(row), min_margin_(min_margin), report_(report) {}

  /// The prompt in chunks that end at the recorded positions, then the recorded continuation in one
  /// chunk.
  void teacher_forced(SequenceRunner& runner, TestSequence& sequence) {
    for (const Json& position : row_["positions"]) {
      const auto end = position["pos"].get<std::uint32_t>() + 1;
      while (sequence.num_computed < end) {
        const std::uint32_t tokens = std::min(end - sequence.num_computed, kChunk);
        sequence.keep_all_logits = sequence.num_computed + tokens == end;
        const ChunkOrder order{&sequence, tokens};
        runner.step({&order, 1});
      }
      compare_position(sequence.logits[end - 1], position);
      sequence.logits.assign(end, {});
    }
    const auto prompt_tokens = static_cast<std::uint32_t>(row_["ids"].size());
    const std::vector<TokenId> continuation = ids_of(row_["greedy"]["ids"]);
    sequence.tokens.resize(prompt_tokens);
    sequence.tokens.insert(sequence.tokens.end(), continuation.begin(), continuation.end());
    sequence.keep_all_logits = true;
    const ChunkOrder order{&sequence, static_cast<std::uint32_t>(continuation.size())};
    runner.step({&order, 1});
    for (std::size_t step = 0; step < continuation.size(); ++step) {
      compare_step(step == 0 ? last_prompt_row_ : sequence.logits[prompt_tokens + step - 1], step);
    }
  }

  void free_running(const std::vector<SampledToken>& sampled) {
    const std::vector<TokenId> expected = ids_of(row_["greedy"]["ids"]);
    ++report_.num_free_rows;
    bool equal = true;
    for (std::size_t step = 0; step < expected.size(); ++step) {
      equal = equal && sampled[step].token == expected[step];
    }
    if (equal) ++report_.num_free_rows_equal;
    for (std::size_t step = 0; step < expected.size(); ++step) {
      if (row_["greedy"]["margin"][step].get<double>() < min_margin_) {
        report_.num_free_steps_skipped += expected.size() - step;
        return;
      }
      ++report_.num_free_steps;
      if (sampled[step].token == expected[step]) continue;
      ++report_.num_free_steps_wrong;
      note("free step " + std::to_string(step));
      return;
    }
  }

 private:
  static constexpr std::uint32_t kChunk = 128;

  void compare_position(const std::vector<float>& logits, const Json& position) {
    const Distribution distribution(logits);
    const Json& top = position["top"];
    const double before = report_.sum_logprob_difference;
    for (const Json& entry : top) {
      compare_logprob(distribution.logprob(entry[0].get<TokenId>()), entry[1].get<double>());
    }
    report_.num_top_logprobs += top.size();
    report_.sum_top_logprob_difference += report_.sum_logprob_difference - before;
    const double margin = top[0][1].get<double>() - top[1][1].get<double>();
    compare_best(distribution.best(), top[0][0].get<TokenId>(), margin,
                 "position " + position["pos"].dump());
    last_prompt_row_ = logits;
  }

  void compare_step(const std::vector<float>& logits, std::size_t step) {
    const Json& greedy = row_["greedy"];
    const Distribution distribution(logits);
    const std::string where = "step " + std::to_string(step);
    const double logprob = greedy["logprob"][step].get<double>();
    const double margin = greedy["margin"][step].get<double>();
    const auto token = greedy["ids"][step].get<TokenId>();
    compare_logprob(distribution.logprob(token), logprob);
    compare_logprob(distribution.logprob(greedy["runner_up"][step].get<TokenId>()),
                    logprob - margin);
    compare_best(distribution.best(), token, margin, where);
  }

  void compare_logprob(double actual, double expected) {
    const double difference = std::isnan(actual) ? 1e9 : std::abs(actual - expected);
    ++report_.num_logprobs;
    report_.sum_logprob_difference += difference;
    report_.worst_logprob_difference = std::max(report_.worst_logprob_difference, difference);
  }

  void compare_best(TokenId actual, TokenId expected, double margin, const std::string& where) {
    if (margin < min_margin_) {
      ++report_.num_tops_skipped;
      return;
    }
    ++report_.num_tops;
    if (actual == expected) return;
    ++report_.num_tops_wrong;
    note(where);
  }

  void note(const std::string& where) {
    if (report_.first_wrong.empty()) {
      report_.first_wrong = row_["name"].get<std::string>() + ", " + where;
    }
  }

  const Json& row_;
  double min_margin_;
  GoldenReport& report_;
  std::vector<float> last_prompt_row_;
};

/// All rows at once: first their prompts one by one, then one token of each in every step.
void continue_freely(SequenceRunner& runner, std::vector<TestSequence>& sequences,
                     std::size_t steps) {
  for (TestSequence& sequence : sequences) runner.run_alone(sequence, 256, 1);
  for (std::size_t step = 1; step < steps; ++step) {
    std::vector<ChunkOrder> orders;
    for (TestSequence& sequence : sequences) orders.push_back({&sequence, 1});
    runner.step(orders);
  }
}

}  // namespace

GoldenReport compare_with_golden(const TestModel& model, const RunOptions& asked,
                                 const std::string& golden_file, double min_margin,
                                 const std::string& only_row) {
  std::vector<Json> rows = read_lines(golden_path(golden_file));
  std::erase_if(rows, [&](const Json& row) {
    return !only_row.empty() && row["name"].get<std::string>() != only_row;
  });
  RunOptions options = asked;
  std::vector<std::uint32_t> first_block;  // of each row
  std::uint32_t blocks = 0;
  std::size_t steps = 0;
  const auto geometry = model.config.kv_geometry(options.kv_type, options.block_tokens);
  for (const Json& row : rows) {
    first_block.push_back(blocks);
    steps = row["greedy"]["ids"].size();
    blocks += static_cast<std::uint32_t>(geometry.stripes_for(row["ids"].size() + steps) *
                                         geometry.blocks_per_stripes());
  }
  options.num_blocks = blocks;
  options.max_sequences = static_cast<std::uint32_t>(rows.size());
  SequenceRunner runner(model, options);
  GoldenReport report;
  const auto start = [&](std::size_t i) {
    const std::vector<TokenId> prompt = ids_of(rows[i]["ids"]);
    const auto tokens = static_cast<std::uint32_t>(prompt.size() + steps);
    return make_sequence(greedy_request(prompt), runner.blocks(tokens, first_block[i]), false);
  };
  std::vector<TestSequence> sequences;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    TestSequence sequence = start(i);
    RowComparison(rows[i], min_margin, report).teacher_forced(runner, sequence);
    sequences.push_back(start(i));
  }
  continue_freely(runner, sequences, steps);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RowComparison(rows[i], min_margin, report).free_running(sequences[i].sampled);
  }
  return report;
}

std::string describe(const GoldenReport& r) {
  std::ostringstream out;
  out << r.num_logprobs << " logprobs, mean difference " << r.mean_logprob_difference()
      << " (top 20 alone " << r.mean_top_logprob_difference() << "), worst "
      << r.worst_logprob_difference << "; best token: " << r.num_tops << " compared, "
      << r.num_tops_skipped << " skipped, " << r.num_tops_wrong
      << " wrong; free greedy: " << r.num_free_rows_equal << " of " << r.num_free_rows
      << " rows equal, " << r.num_free_steps << " steps compared, " << r.num_free_steps_skipped
      << " skipped, " << r.num_free_steps_wrong << " wrong";
  if (!r.first_wrong.empty()) out << " (first: " << r.first_wrong << ")";
  return out.str();
}

}  // namespace kvasir::runtime::test
