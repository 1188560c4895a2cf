#include "server/http/kv_status.h"

#include "server/cancel_causes.h"
#include "server/http/json_writer.h"

#include <cstddef>
#include <cstdint>
#include <tuple>

namespace kvasir::server {

static_assert(kCancelCauses.size() ==
              std::tuple_size_v<decltype(engine::EngineStatus::cancelled_total)>);

std::string kv_status_body(const GenerateService& service) {
  const engine::EngineStatus status = service.status();
  const ModelInfo& model = service.model();
  const std::uint64_t block = status.bytes_per_block;
  JsonWriter json;
  json.begin_object().member("object", "kv.status").member("model", model.served_name);
  json.member("kv_type", kvcache::kv_type_name(model.geometry.type));
  json.member("block_tokens", model.geometry.block_tokens);
  json.member("bytes_per_token", model.geometry.bytes_per_token()).member("bytes_per_block", block);
  json.member("budget_bytes", model.kv_budget_bytes);
  json.member("total_blocks", status.total_blocks).member("free_blocks", status.free_blocks);
  json.member("live_blocks", status.live_blocks).member("cached_blocks", status.cached_blocks);
  json.member("live_bytes", status.live_blocks * block)
      .member("cached_bytes", status.cached_blocks * block);
  json.member("running_sequences", status.running_sequences)
      .member("waiting_sequences", status.waiting_sequences);
  json.key("draining").boolean(status.draining);
  json.member("steps_total", status.steps_total)
      .member("prompt_tokens_total", status.prompt_tokens_total);
  json.member("generation_tokens_total", status.generation_tokens_total);
  json.member("computed_tokens_total", status.computed_tokens_total);
  json.member("recomputed_tokens_total", status.recomputed_tokens_total);
  json.member("wasted_tokens_total", status.wasted_tokens_total);
  json.member("prefix_query_tokens_total", status.prefix_query_tokens_total);
  json.member("prefix_hit_tokens_total", status.prefix_hit_tokens_total);
  json.member("preemptions_total", status.preemptions_total)
      .member("rejected_total", status.rejected_total);
  json.member("finished_stop_total", status.finished_stop_total);
  json.member("finished_length_total", status.finished_length_total);
  json.member("finished_error_total", status.finished_error_total);
  json.key("cancelled_total").begin_object();
  for (std::size_t i = 0; i < kCancelCauses.size(); ++i)
    json.member(kCancelCauses.at(i), status.cancelled_total.at(i));
  json.end_object().end_object();
  return json.take();
}

}  // namespace kvasir::server
