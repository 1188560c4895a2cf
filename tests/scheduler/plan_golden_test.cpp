// plan() as a table: tests/scheduler/plan_cases.txt has a situation and the decision on each line.
// The KV cache is a fake that says what the line says, so that every count can be anything.
#include "core/check.h"
#include "scheduler/plan.h"
#include "scheduler/plan_text.h"
#include "tests/support/catch.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace kvasir::scheduler {
namespace {

constexpr const char* kCases = KVASIR_SOURCE_DIR "/tests/scheduler/plan_cases.txt";
constexpr std::uint32_t kBlockTokens = 4;

/// "rID key=value key" as its parts.
struct Words {
  std::string head;
  std::map<std::string, std::int64_t> values;

  explicit Words(const std::string& text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      const std::size_t equals = word.find('=');
      if (equals != std::string::npos) {
        values[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
      } else if (head.empty()) {
        head = word;
      } else {
        values[word] = 1;
      }
    }
  }
  [[nodiscard]] std::int64_t get(const std::string& key, std::int64_t otherwise) const {
    const auto found = values.find(key);
    return found == values.end() ? otherwise : found->second;
  }
  [[nodiscard]] std::uint32_t count(const std::string& key, std::int64_t otherwise) const {
    return static_cast<std::uint32_t>(get(key, otherwise));
  }
};

class FakeKv final : public kvcache::KvView {
 public:
  explicit FakeKv(const Words& step)
      : num_blocks_(step.count("blocks", 0)),
        num_free_(step.count("free", 0)),
        shared_window_blocks_(step.count("shared", 0)) {
    const std::uint32_t windowed = step.count("windowed", 0);
    const std::uint32_t full = step.count("full", windowed > 0 ? 0 : 1);
    if (full > 0) geometry_.groups.push_back({full, 1, 8, 0});
    if (windowed > 0) geometry_.groups.push_back({windowed, 1, 8, step.count("window", 1)});
    geometry_.block_tokens = kBlockTokens;
    geometry_.largest_chunk = step.count("chunk", 512);
  }
  const kvcache::KvGeometry& geometry() const override { return geometry_; }
  std::uint32_t num_blocks() const override { return num_blocks_; }
  std::uint32_t num_free_blocks() const override { return num_free_; }
  std::uint32_t num_stripes(SequenceId id) const override { return stripes.at(id); }
  std::uint32_t blocks_held(SequenceId id) const override { return held.at(id); }
  std::uint32_t shared_window_blocks() const override { return shared_window_blocks_; }
  bool can_fork(SequenceId id, std::uint32_t) const override { return !moved_on.contains(id); }
  std::uint32_t blocks_freed_by_evicting(SequenceId id) const override { return alone.at(id); }
  kvcache::PrefixMatch match_prefix(const kvcache::HashedTokens& tokens) const override {
    return match.at(tokens.tokens.data());
  }
  kvcache::HashChain new_hash_chain(std::uint64_t salt) const override {
    return {{.model_hash = 0, .type = kvcache::KvType::kF16, .cache_salt = salt},
            kBlockTokens,
            &kvcache::hash_block};
  }

  std::map<SequenceId, std::uint32_t> stripes;
  std::map<SequenceId, std::uint32_t> held;
  std::set<SequenceId> moved_on;  // past what a fork would read
  std::map<SequenceId, std::uint32_t> alone;
  std::map<const TokenId*, kvcache::PrefixMatch> match;  // by the sequence's token list

 private:
  kvcache::KvGeometry geometry_;
  std::uint32_t num_blocks_;
  std::uint32_t num_free_;
  std::uint32_t shared_window_blocks_;
};

Sequence make_sequence(const Words& words, const FakeKv& kv, std::uint64_t arrival) {
  Sequence sequence;
  sequence.id = SequenceId{std::stoull(words.head.substr(1))};
  Request request;
  request.stop.max_tokens = words.get("prompt-only", 0) != 0 ? 0 : 1;
  request.stop.min_tokens = words.count("min", 0);
  if (words.get("scored", -1) >= 0) request.prompt_logprobs = 0;
  sequence.request = std::make_shared<const Request>(std::move(request));
  sequence.tokens.assign(
      words.count("known", 1),
      words.count("text", static_cast<std::int64_t>(1000 + value_of(sequence.id))));
  sequence.hashes = kv.new_hash_chain(0);
  sequence.hashes.extend(sequence.tokens);
  sequence.num_prompt_tokens = words.count("prompt", sequence.num_tokens());
  sequence.num_computed_tokens = words.count("computed", 0);
  sequence.num_scored_rows = words.count("scored", 0);
  sequence.max_total_tokens = words.count("max", sequence.num_tokens() + 8);
  sequence.priority = static_cast<std::int32_t>(words.get("priority", 0));
  sequence.preemptions = words.count("preempted", 0);
  sequence.last_turn = words.count("served", 0);
  sequence.immune = words.get("immune", 0) != 0;
  sequence.fork_group = words.count("group", 0);
  sequence.arrival_order = arrival;
  if (const std::int64_t deadline = words.get("deadline", 0); deadline > 0) {
    sequence.deadline = TimePoint{} + std::chrono::milliseconds(deadline);
  }
  return sequence;
}

void describe_blocks(const Words& words, const Sequence& sequence, FakeKv& kv) {
  const kvcache::KvGeometry& geometry = kv.geometry();
  const auto stripes =
      static_cast<std::uint32_t>(geometry.stripes_for(sequence.num_computed_tokens));
  std::uint32_t held = 0;
  for (std::size_t g = 0; g < geometry.groups.size(); ++g) {
    held += (stripes - geometry.first_visible_stripe(g, sequence.num_computed_tokens)) *
            geometry.blocks_per_stripe(g);
  }
  kv.stripes[sequence.id] = stripes;
  kv.held[sequence.id] = held;
  kv.alone[sequence.id] = words.count("alone", held);
  if (words.get("moved-on", 0) != 0) kv.moved_on.insert(sequence.id);
}

kvcache::PrefixMatch match_of(const Words& words) {
  const std::uint32_t stripes = words.count("match", 0);
  return {.tokens = stripes * kBlockTokens + words.count("copy", 0),
          .stripes = stripes,
          .live_blocks = words.count("live", stripes - words.count("reclaim", 0)),
          .copy_blocks = words.count("pinned", 0)};
}

std::string decide(const std::string& situation) {
  std::istringstream in(situation);
  std::string part;
  std::getline(in, part, ';');
  const Words step(part);
  FakeKv kv(step);
  SchedulerState state;
  state.lengths.mean_256ths = std::uint64_t{step.count("forecast", 0)} * 256;
  std::uint64_t arrival = 0;
  while (std::getline(in, part, ';')) {
    const Words words(part);
    Sequence sequence = make_sequence(words, kv, arrival++);
    describe_blocks(words, sequence, kv);
    std::vector<Sequence>& line = words.head[0] == 'r' ? state.running : state.waiting;
    line.push_back(std::move(sequence));
    kv.match[line.back().tokens.data()] = match_of(words);
  }
  std::ranges::stable_sort(state.running, {}, &Sequence::priority);
  std::ranges::stable_sort(state.waiting, {}, &Sequence::priority);
  const StepLimits limits{.admission = step.head == "reserve" ? AdmissionPolicy::kReserve
                                                              : AdmissionPolicy::kOptimistic,
                          .max_step_tokens = step.count("tokens", 1),
                          .max_sequences = step.count("sequences", 1)};
  return plan_text(plan(state, kv, limits, TimePoint{} + std::chrono::milliseconds(1000)));
}

}  // namespace

TEST_CASE("plan: decides as tests/scheduler/plan_cases.txt says", "[scheduler][golden]") {
  const bool update = std::getenv("KVASIR_UPDATE_GOLDEN") != nullptr;
  std::ifstream in(kCases);
  REQUIRE(in.is_open());
  std::ostringstream rewritten;
  std::size_t num_cases = 0;
  for (std::string line; std::getline(in, line);) {
    const std::size_t arrow = line.find(" -> ");
    if (line.starts_with('#') || arrow == std::string::npos) {
      rewritten << line << '\n';
      continue;
    }
    ++num_cases;
    const std::string situation = line.substr(0, arrow);
    const std::string decision = decide(situation);
    rewritten << situation << " -> " << decision << '\n';
    INFO(situation);
    if (!update) CHECK(decision == line.substr(arrow + 4));
  }
  CHECK(num_cases > 40);
  if (update) std::ofstream(kCases) << rewritten.str();
}

TEST_CASE("plan_text: shows every kind of decision", "[scheduler]") {
  CHECK(plan_text({}) == "idle");
  StepPlan plan;
  plan.reject = {{SequenceId{9}, ErrorCode::kDeadlineExceeded},
                 {SequenceId{8}, ErrorCode::kContextLengthExceeded}};
  plan.preempt = {SequenceId{4}};
  plan.admit = {{SequenceId{7}, 64, false}, {SequenceId{6}, 0, true}};
  plan.chunks = {
      {SequenceId{1}, 40, 1, 0, 0}, {SequenceId{7}, 64, 32, 2, 32}, {SequenceId{6}, 0, 5, 1, 2}};
  CHECK(plan_text(plan) ==
        "reject 9:deadline 8:too-long | preempt 4 | admit 7+64 6+0! | run 1@40x1* 7@64x32+2 "
        "6@0x5+1*2");
}

}  // namespace kvasir::scheduler
