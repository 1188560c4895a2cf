#include "server/kv_plan.h"

#include "server/row_checks.h"
#include "server/shown_value.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvasir::server {
namespace {

using kvcache::PlanModel;
using kvcache::PlanRequest;

struct Number {
  const char* name;
  const std::optional<std::int64_t>& value;
};

/// A model is described in one way only.
void check_source(const PlanFields& fields, Verdict& verdict) {
  const Number numbers[] = {{"layers", fields.layers},
                            {"kv_heads", fields.kv_heads},
                            {"query_heads", fields.query_heads},
                            {"head_dim", fields.head_dim}};
  const char* other = fields.preset ? "preset" : "model";
  if (fields.preset) {
    verdict.require(!fields.model, "preset", "absent beside model", shown_value(*fields.preset));
  }
  bool any = false;
  for (const auto& [name, value] : numbers) {
    if (!value) continue;
    any = true;
    verdict.require(!fields.preset && !fields.model, name, std::string("absent beside ") + other,
                    shown_value(*value));
  }
  if (!any) return;
  const auto need = [&verdict](bool given, const char* param, const std::string& what) {
    if (!given)
      verdict.fail(ErrorCode::kMissingParameter, param,
                   what +
                       " must be given for a model of "
                       "your own numbers");
  };
  need(fields.layers.has_value(), "layers", "layers");
  need(fields.kv_heads || fields.query_heads, "kv_heads", "kv_heads or query_heads");
  need(fields.head_dim.has_value(), "head_dim", "head_dim");
}

void check_heads(const PlanFields& fields, Verdict& verdict) {
  if (!fields.kv_heads || !fields.query_heads) return;
  verdict.require(*fields.query_heads % *fields.kv_heads == 0, "query_heads",
                  "a multiple of kv_heads (" + shown_value(*fields.kv_heads) + ")",
                  shown_value(*fields.query_heads));
}

void check_pattern(const PlanFields& fields, Verdict& verdict) {
  if (!fields.window_pattern) return;
  const std::string& text = *fields.window_pattern;
  verdict.require(kvcache::window_pattern_from_text(text).has_value(), "window_pattern",
                  "layers with the window, a colon and layers without it, such as \"5:1\", each "
                  "at most 999",
                  shown_value(text));
  verdict.require(fields.window_tokens.value_or(0) > 0, "window_pattern",
                  "absent unless window_tokens is at least 1", shown_value(text));
}

std::uint32_t count_of(std::int64_t value) { return static_cast<std::uint32_t>(value); }

PlanModel model_of_numbers(const PlanFields& fields) {
  PlanModel model;
  const std::int64_t kv_heads = fields.kv_heads ? *fields.kv_heads : *fields.query_heads;
  model.groups = {{.num_layers = count_of(*fields.layers),
                   .num_kv_heads = count_of(kv_heads),
                   .head_dim = count_of(*fields.head_dim),
                   .window_tokens = 0}};
  model.query_heads = count_of(fields.query_heads.value_or(kv_heads));
  model.context_tokens = kPlanContextTokens;
  return model;
}

/// Prompt and new tokens fill the context where they are not given: at least one of each.
void fill_tokens(const PlanFields& fields, PlanRequest& request) {
  const auto context = static_cast<std::int64_t>(request.context_tokens);
  const auto left_by = [context](std::int64_t other) {
    return std::clamp<std::int64_t>(context - other, 1, kvcache::kMaxPlanTokens);
  };
  std::int64_t prompt = left_by(context / 2);
  if (fields.new_tokens) prompt = left_by(*fields.new_tokens);
  if (fields.prompt_tokens) prompt = *fields.prompt_tokens;
  request.prompt_tokens = static_cast<std::uint64_t>(prompt);
  request.new_tokens = static_cast<std::uint64_t>(fields.new_tokens.value_or(left_by(prompt)));
}

PlannedModel model_of(const PlanFields& fields, const PlannedModel& own) {
  if (!fields.preset && !fields.layers) return own;
  PlannedModel planned;
  planned.model = fields.preset ? *kvcache::preset_model(*fields.preset) : model_of_numbers(fields);
  planned.largest_chunk = own.largest_chunk;
  return planned;
}

PlannedModel served_model(const ModelInfo& info) {
  PlannedModel served;
  served.model.name = info.served_name;
  served.model.groups = info.geometry.groups;
  served.model.query_heads = info.query_heads;
  served.model.context_tokens = info.context_tokens;
  if (info.weights_bytes > 0) {
    served.model.weights_bytes = info.weights_bytes;
    served.model.weights_from = "tensors of the model file";
  }
  served.type = info.geometry.type;
  served.budget_bytes = info.kv_budget_bytes;
  served.largest_chunk = info.geometry.largest_chunk;
  return served;
}

}  // namespace

Result<void> validate(const PlanFields& fields, const ValidationBounds& bounds) {
  Verdict verdict;
  check_rows(fields, bounds, verdict);
  check_source(fields, verdict);
  if (!verdict.failed()) check_heads(fields, verdict);
  check_pattern(fields, verdict);
  return verdict.take();
}

Result<kvcache::KvPlan> make_plan(const PlanFields& fields, const PlannedModel& own) {
  PlannedModel planned = model_of(fields, own);
  PlanRequest request;
  request.context_tokens = planned.model.context_tokens;
  request.model = std::move(planned.model);
  request.type = planned.type;
  if (fields.kv_type) request.type = *kvcache::kv_type_from_name(*fields.kv_type);
  request.grouping = fields.grouping.value_or(true);
  if (fields.window_tokens) request.window_tokens = count_of(*fields.window_tokens);
  if (fields.window_pattern)
    request.pattern = *kvcache::window_pattern_from_text(*fields.window_pattern);
  if (fields.context_tokens)
    request.context_tokens = static_cast<std::uint64_t>(*fields.context_tokens);
  request.batch = static_cast<std::uint64_t>(fields.batch.value_or(1));
  fill_tokens(fields, request);
  request.budget_bytes = planned.budget_bytes;
  if (fields.budget_bytes) request.budget_bytes = static_cast<std::uint64_t>(*fields.budget_bytes);
  request.largest_chunk = planned.largest_chunk;
  return kvcache::plan_kv(std::move(request));
}

Result<kvcache::KvPlan> served_plan(const PlanFields& fields, const GenerateService& service) {
  const ValidationBounds bounds{service.model().vocab_size, service.limits()};
  if (auto ok = validate(fields, bounds); !ok) return tl::unexpected<Error>(ok.error());
  if (auto ok = service.check_model(fields.model); !ok) return tl::unexpected<Error>(ok.error());
  return make_plan(fields, served_model(service.model()));
}

}  // namespace kvasir::server
