// Entry to the state and exit from it outside of a step.
#include "scheduler/scheduler_state.h"

#include "core/check.h"
#include "scheduler/service_order.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

namespace kvasir::scheduler {
namespace {

std::uint32_t total_token_limit(const Request& request, const StepLimits& limits) {
  std::uint64_t total = std::uint64_t{request.prompt_tokens.size()} + request.stop.max_tokens;
  if (limits.context_tokens > 0) total = std::min<std::uint64_t>(total, limits.context_tokens);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(total, kMost));
}

void print(std::ostream& out, const char* status, const Sequence& sequence) {
  out << status << ' ' << value_of(sequence.id) << " priority " << sequence.priority << " computed "
      << sequence.num_computed_tokens << '/' << sequence.num_tokens() << " of "
      << sequence.max_total_tokens << " prompt " << sequence.num_prompt_tokens << " preempted "
      << sequence.preemptions << " waited " << sequence.waited_steps
      << (sequence.immune ? " immune" : "") << '\n';
}

}  // namespace

const Sequence* SchedulerState::find(SequenceId id) const {
  for (const std::vector<Sequence>* line : {&running, &waiting}) {
    const auto found = std::ranges::find(*line, id, &Sequence::id);
    if (found != line->end()) return &*found;
  }
  return nullptr;
}

std::uint64_t SchedulerState::num_preempted() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(waiting, [](const Sequence& s) { return s.preemptions > 0; }));
}

void SchedulerState::learn_from(const Sequence& ended) {
  if (ended.num_generated() > 0) lengths.add(ended.num_generated());
}

void submit(SchedulerState& state, const kvcache::KvView& kv, const StepLimits& limits,
            const Submission& submission, TimePoint now) {
  const Request& request = *submission.request;
  KVASIR_CHECK(!request.prompt_tokens.empty(), "sequence " << value_of(submission.id));
  KVASIR_CHECK(request.stop.max_tokens >= 1 || request.prompt_logprobs.has_value(),
               "sequence " << value_of(submission.id) << " wants nothing");

  Sequence sequence;
  sequence.id = submission.id;
  sequence.request = submission.request;
  sequence.tokens = request.prompt_tokens;
  sequence.hashes = kv.new_hash_chain(request.cache_salt);
  sequence.hashes.extend(sequence.tokens);
  sequence.num_prompt_tokens = sequence.num_tokens();
  sequence.max_total_tokens = total_token_limit(request, limits);
  sequence.priority = request.priority;
  sequence.deadline = request.deadline;
  sequence.fork_group = request.fork_group;
  sequence.arrival_order = state.next_arrival++;
  sequence.arrived_at = now;

  const auto place = std::ranges::upper_bound(state.waiting, sequence, waiting_before);
  state.waiting.insert(place, std::move(sequence));
}

std::optional<Sequence> remove(SchedulerState& state, kvcache::KvCacheManager& kv, SequenceId id) {
  for (std::vector<Sequence>* line : {&state.running, &state.waiting}) {
    const auto found = std::ranges::find(*line, id, &Sequence::id);
    if (found == line->end()) continue;
    Sequence removed = std::move(*found);
    line->erase(found);
    if (line == &state.running) give_back_blocks(removed, kv);
    state.learn_from(removed);
    return removed;
  }
  return std::nullopt;
}

Sequence& running_sequence(SchedulerState& state, SequenceId id) {
  const auto found = std::ranges::find(state.running, id, &Sequence::id);
  KVASIR_CHECK(found != state.running.end(), "sequence " << value_of(id) << " is not running");
  return *found;
}

void give_back_blocks(Sequence& sequence, kvcache::KvCacheManager& kv) {
  const kvcache::KvReceipt run = kv.evict(sequence.id, sequence.hashed_tokens());
  if (run.peak_blocks > sequence.kv.peak_blocks) {
    sequence.kv.peak_blocks = run.peak_blocks;
    sequence.kv.shared_blocks = run.shared_blocks;
  }
  sequence.kv.taken_blocks += run.taken_blocks;
  sequence.kv.returned_blocks += run.returned_blocks;
}

std::string to_text(const SchedulerState& state) {
  std::ostringstream out;
  for (const Sequence& sequence : state.running) print(out, "running", sequence);
  for (const Sequence& sequence : state.waiting) print(out, "waiting", sequence);
  return out.str();
}

}  // namespace kvasir::scheduler
