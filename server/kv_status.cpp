#include "server/kv_status.h"

#include "core/seconds.h"
#include "kvcache/kv_formula.h"

#include <array>
#include <tuple>

namespace kvasir::server {
namespace {

static_assert(kCancelCauses.size() ==
              std::tuple_size_v<decltype(engine::EngineStatus::cancelled_total)>);

std::string_view readiness_name(Readiness readiness) {
  switch (readiness) {
    case Readiness::kLoading:
      return "loading";
    case Readiness::kReady:
      return "ready";
    case Readiness::kDraining:
      break;
  }
  return "draining";
}

std::vector<LayerGroupFacts> layer_groups(const kvcache::KvGeometry& geometry) {
  std::vector<LayerGroupFacts> groups;
  for (const kvcache::KvLayerGroup& group : geometry.groups) {
    kvcache::KvGeometry alone;
    alone.groups = {group};
    alone.type = geometry.type;
    LayerGroupFacts facts;
    facts.layers = group.num_layers;
    facts.window_tokens = group.window_tokens;
    facts.kv_heads = group.num_kv_heads;
    facts.head_dim = group.head_dim;
    facts.bytes_per_token = alone.bytes_per_token();
    groups.push_back(facts);
  }
  return groups;
}

void set_model(const ModelInfo& model, KvStatus& out) {
  out.model = model.served_name;
  out.context_tokens = model.context_tokens;
  out.kernels = model.kernels;
  out.num_threads = model.num_threads;
  out.budget_bytes = model.kv_budget_bytes;
  out.kv_type = kvcache::kv_type_name(model.geometry.type);
  out.block_tokens = model.geometry.block_tokens;
  out.bytes_per_token = model.geometry.bytes_per_token();
  out.formula = kvcache::bytes_per_token_formula(model.geometry);
  out.layer_groups = layer_groups(model.geometry);
}

void set_pool(const engine::EngineStatus& now, KvStatus& out) {
  const std::uint64_t block = now.bytes_per_block;
  out.bytes_per_block = block;
  out.live_bytes = now.live_blocks * block;
  out.cached_bytes = now.cached_blocks * block;
  out.reserved_bytes = now.reserved_blocks * block;
  out.free_bytes = now.free_blocks * block;
  out.total_blocks = now.total_blocks;
  out.live_blocks = now.live_blocks;
  out.cached_blocks = now.cached_blocks;
  out.reserved_blocks = now.reserved_blocks;
  out.free_blocks = now.free_blocks;
  out.taken_blocks_total = now.taken_blocks_total;
  out.returned_blocks_total = now.returned_blocks_total;
  out.window_returned_blocks_total = now.window_returned_blocks_total;
  out.reclaimed_blocks_total = now.reclaimed_blocks_total;
  out.prefix_query_tokens_total = now.prefix_query_tokens_total;
  out.prefix_hit_tokens_total = now.prefix_hit_tokens_total;
  out.prefix_miss_tokens_total = now.prefix_query_tokens_total - now.prefix_hit_tokens_total;
  out.preemptions_total = now.preemptions_total;
  out.audited_prefixes_total = now.audited_prefixes_total;
  out.audited_tokens_total = now.audited_tokens_total;
  out.audit_mismatches_total = now.audit_mismatches_total;
  out.audits_given_up_total = now.audits_given_up_total;
  out.dropped_blocks_total = now.dropped_blocks_total;
}

void set_work(const engine::EngineStatus& now, KvStatus& out) {
  out.draining = now.draining;
  out.running_sequences = now.running_sequences;
  out.waiting_sequences = now.waiting_sequences;
  out.retry_after_seconds = now.retry_after_seconds;
  out.steps_total = now.steps_total;
  out.prompt_tokens_total = now.prompt_tokens_total;
  out.generation_tokens_total = now.generation_tokens_total;
  out.computed_tokens_total = now.computed_tokens_total;
  out.recomputed_tokens_total = now.recomputed_tokens_total;
  out.wasted_tokens_total = now.wasted_tokens_total;
  out.rejected_total = now.rejected_total;
  out.finished_stop_total = now.finished_stop_total;
  out.finished_length_total = now.finished_length_total;
  out.finished_error_total = now.finished_error_total;
  out.cancelled_total = now.cancelled_total;
  out.execute_seconds_total = to_seconds(now.execute_time_total);
  out.step_seconds_total = to_seconds(now.step_time_total);
}

}  // namespace

std::span<const FactRow<LayerGroupFacts>> layer_group_rows() {
  using G = LayerGroupFacts;
  static const auto rows = std::to_array<FactRow<G>>({
      {"layers", &G::layers, "Layers of the model that attend so."},
      {"window_tokens", &G::window_tokens,
       "Positions that a query sees, its own included; 0 is all of them."},
      {"kv_heads", &G::kv_heads, "Heads of keys and values in each layer."},
      {"head_dim", &G::head_dim, "Elements of one head's key or value."},
      {"bytes_per_token", &G::bytes_per_token, "Keys and values of one token in these layers."},
  });
  return rows;
}

std::span<const FactRow<KvStatus>> kv_status_rows() {
  using S = KvStatus;
  static const auto rows = std::to_array<FactRow<S>>({
      {"model", &S::model, "The served name."},
      {"readiness", &S::readiness,
       "loading, ready, draining, or not_serving: the engine or a strict truth check says no."},
      {"draining", &S::draining, "Whether the engine takes no more work."},
      {"running_sequences", &S::running_sequences, "Sequences that hold blocks."},
      {"waiting_sequences", &S::waiting_sequences,
       "Sequences that wait for their first step, or "
       "for their next one after a preemption."},
      {"retry_after_seconds", &S::retry_after_seconds,
       "What a request is told when the queue is full: an estimate of when a place will be free."},
      {"context_tokens", &S::context_tokens,
       "Prompt and generated tokens of one sequence at most."},
      {"kernels", &S::kernels, "The instruction set that runs."},
      {"num_threads", &S::num_threads, "Threads of the model's forward pass."},
      {"budget_bytes", &S::budget_bytes,
       "`--kv-budget`; the pool is the whole blocks that fit into it."},
      {"live_bytes", &S::live_bytes, "Blocks that running sequences hold, shared ones once."},
      {"cached_bytes", &S::cached_bytes,
       "Blocks that nobody holds and that are kept for later prefixes; part of the free ones."},
      {"reserved_bytes", &S::reserved_bytes,
       "Of the free blocks, those kept for what running sequences may come to need."},
      {"free_bytes", &S::free_bytes,
       "Blocks that nobody holds, cached ones included; with the live ones they are all."},
      {"total_blocks", &S::total_blocks, "Blocks of the pool."},
      {"live_blocks", &S::live_blocks, "As live_bytes."},
      {"cached_blocks", &S::cached_blocks, "As cached_bytes."},
      {"reserved_blocks", &S::reserved_blocks, "As reserved_bytes."},
      {"free_blocks", &S::free_blocks, "As free_bytes."},
      {"kv_type", &S::kv_type, "Type of the stored elements: f32, f16 or bf16."},
      {"block_tokens", &S::block_tokens, "Tokens in a block."},
      {"bytes_per_block", &S::bytes_per_block, "Bytes of one block; all are alike."},
      {"bytes_per_token", &S::bytes_per_token,
       "Keys and values of one token, summed over all layers."},
      {"formula", &S::formula, "How bytes_per_token comes about, as text."},
      {"layer_groups", &S::layer_groups, "The layers by their window."},
      {"taken_blocks_total", &S::taken_blocks_total,
       "Blocks that were free and that a sequence took; less the returned ones they are the live "
       "ones."},
      {"returned_blocks_total", &S::returned_blocks_total,
       "Blocks that a sequence gave back and that nobody else held."},
      {"window_returned_blocks_total", &S::window_returned_blocks_total,
       "Of the returned ones, those behind a window that had moved on."},
      {"reclaimed_blocks_total", &S::reclaimed_blocks_total,
       "Cached blocks whose content gave way to another."},
      {"prefix_query_tokens_total", &S::prefix_query_tokens_total,
       "Tokens that were looked up in the prefix cache and in what runs beside; not those of "
       "further "
       "choices of a prompt."},
      {"prefix_hit_tokens_total", &S::prefix_hit_tokens_total, "Of them, those that were found."},
      {"prefix_miss_tokens_total", &S::prefix_miss_tokens_total, "Of them, those that were not."},
      {"preemptions_total", &S::preemptions_total, "Sequences that were stopped to go on later."},
      {"audited_prefixes_total", &S::audited_prefixes_total,
       "Cached prefixes that the truth check computed again and compared."},
      {"audited_tokens_total", &S::audited_tokens_total, "Tokens that it computed for that."},
      {"audit_mismatches_total", &S::audit_mismatches_total,
       "Cached prefixes that were not what it computed; each was dropped."},
      {"audits_given_up_total", &S::audits_given_up_total,
       "Sampled hits that it did not compare to their end: not cached any more, no room, or "
       "interrupted too often."},
      {"dropped_blocks_total", &S::dropped_blocks_total,
       "Blocks that it threw out of the cache after a mismatch."},
      {"steps_total", &S::steps_total, "Engine steps."},
      {"prompt_tokens_total", &S::prompt_tokens_total,
       "Prompt tokens of admitted sequences, cached or not; each choice counts its own."},
      {"generation_tokens_total", &S::generation_tokens_total,
       "Generated tokens, those past a stop string included."},
      {"computed_tokens_total", &S::computed_tokens_total, "Token passes."},
      {"recomputed_tokens_total", &S::recomputed_tokens_total,
       "Token passes repeated after a preemption."},
      {"wasted_tokens_total", &S::wasted_tokens_total,
       "Tokens generated past the end of a stop string."},
      {"rejected_total", &S::rejected_total, "Sequences that could never have run."},
      {"finished_stop_total", &S::finished_stop_total,
       "Sequences that ended by themselves, or at a stop string."},
      {"finished_length_total", &S::finished_length_total, "Sequences that reached their length."},
      {"finished_error_total", &S::finished_error_total, "Sequences that failed."},
      {"cancelled_total", &S::cancelled_total,
       "Sequences that were ended from outside, by cause; those of stop_string are finished ones."},
      {"execute_seconds_total", &S::execute_seconds_total, "Time in the model's forward pass."},
      {"step_seconds_total", &S::step_seconds_total, "Time in engine steps."},
  });
  return rows;
}

KvStatus kv_status(const engine::EngineStatus& now, const ModelInfo& model, Readiness readiness) {
  KvStatus out;
  set_model(model, out);
  set_pool(now, out);
  set_work(now, out);
  out.readiness = readiness_name(readiness);
  return out;
}

KvStatus kv_status(const GenerateService& service) {
  KvStatus out = kv_status(service.status(), service.model(), service.readiness());
  // As the probes have it: ready is what takes work.
  if (service.readiness() == Readiness::kReady && !service.check_serving()) {
    out.readiness = "not_serving";
  }
  return out;
}

}  // namespace kvasir::server
