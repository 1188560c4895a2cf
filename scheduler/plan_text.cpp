// The notation is for people and for diffs; nothing parses it.
#include "scheduler/plan_text.h"

#include <sstream>

namespace kvasir::scheduler {
namespace {

const char* reason(ErrorCode code) {
  return code == ErrorCode::kDeadlineExceeded ? "deadline" : "too-long";
}

void print_chunk(std::ostream& out, const Chunk& chunk) {
  out << ' ' << value_of(chunk.sequence) << '@' << chunk.first_position << 'x' << chunk.num_tokens;
  if (chunk.num_new_stripes > 0) out << '+' << chunk.num_new_stripes;
  if (chunk.first_logits_row >= chunk.num_tokens) return;
  out << '*';
  if (chunk.first_logits_row + 1 < chunk.num_tokens) out << chunk.first_logits_row;
}

}  // namespace

std::string plan_text(const StepPlan& plan) {
  if (plan.empty()) return "idle";
  std::ostringstream out;
  const char* separator = "";
  const auto section = [&](const char* name, bool present) {
    if (present) {
      out << separator << name;
      separator = " | ";
    }
  };
  section("reject", !plan.reject.empty());
  for (const Rejection& rejection : plan.reject) {
    out << ' ' << value_of(rejection.sequence) << ':' << reason(rejection.code);
  }
  section("preempt", !plan.preempt.empty());
  for (const SequenceId id : plan.preempt) out << ' ' << value_of(id);
  section("admit", !plan.admit.empty());
  for (const Admission& admission : plan.admit) {
    out << ' ' << value_of(admission.sequence) << '+' << admission.cached_tokens;
    if (admission.fork_of) out << '<' << value_of(*admission.fork_of);
    out << (admission.reserves_worst_case ? "!" : "");
  }
  section("run", !plan.chunks.empty());
  for (const Chunk& chunk : plan.chunks) print_chunk(out, chunk);
  return out.str();
}

}  // namespace kvasir::scheduler
