#include "server/kv_plan_rows.h"

#include "kvcache/kv_calculator.h"

#include <array>

namespace kvasir::server {
namespace {

using K = FieldKind;

constexpr std::array<std::string_view, 3> kKvTypes = {"f32", "f16", "bf16"};

void add_sources(std::vector<FieldRow>& rows) {
  rows.insert(
      rows.end(),
      {{.name = "preset",
        .kind = K::kText,
        .users = kOfPlan,
        .member = &PlanFields::preset,
        .one_of = kvcache::preset_names(),
        .when_absent = "the numbers given, or the served model",
        .meaning = "A published model, with weights of two bytes a parameter; not beside model or "
                   "numbers."},
       {.name = "layers",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::layers,
        .integers = IntegerRange{1, kvcache::kMaxPlanLayers},
        .when_absent = "the preset's or the served model's",
        .meaning = "Layers of a model of your own numbers, for which head_dim and one kind of "
                   "heads are needed too."},
       {.name = "kv_heads",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::kv_heads,
        .integers = IntegerRange{1, kvcache::kMaxPlanHeads},
        .when_absent = "query_heads, beside layers",
        .meaning = "Heads that have keys and values, in each layer."},
       {.name = "query_heads",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::query_heads,
        .integers = IntegerRange{1, kvcache::kMaxPlanHeads},
        .when_absent = "kv_heads, beside layers",
        .meaning = "Heads that ask, in each layer; a multiple of kv_heads."},
       {.name = "head_dim",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::head_dim,
        .integers = IntegerRange{1, kvcache::kMaxPlanHeadDim},
        .when_absent = "the preset's or the served model's",
        .meaning = "Dimensions of a head."}});
}

void add_settings(std::vector<FieldRow>& rows) {
  rows.insert(
      rows.end(),
      {{.name = "context_tokens",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::context_tokens,
        .integers = IntegerRange{1, kvcache::kMaxPlanContext},
        .when_absent = "the model's own context; 4096 with numbers",
        .meaning = "Tokens that each sequence keeps."},
       {.name = "batch",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::batch,
        .integers = IntegerRange{1, kvcache::kMaxPlanBatch},
        .when_absent = std::int64_t{1},
        .meaning = "Sequences at a time that share nothing."},
       {.name = "kv_type",
        .kind = K::kText,
        .users = kOfPlan,
        .member = &PlanFields::kv_type,
        .one_of = kKvTypes,
        .when_absent = "the served model's; f16 with a preset or numbers",
        .meaning = "Type of the cached elements."},
       {.name = "grouping",
        .kind = K::kSwitch,
        .users = kOfPlan,
        .member = &PlanFields::grouping,
        .when_absent = true,
        .meaning = "False counts a KV head for each query head, as without grouped queries."},
       {.name = "window_tokens",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::window_tokens,
        .integers = IntegerRange{0, kvcache::kMaxPlanContext},
        .when_absent = "the model's own windows",
        .meaning = "Positions that a windowed layer sees, the current one included, in place of "
                   "the model's own windows; 0 is no window."},
       {.name = "window_pattern",
        .kind = K::kText,
        .users = kOfPlan,
        .member = &PlanFields::window_pattern,
        .form = "^[1-9][0-9]{0,2}:(0|[1-9][0-9]{0,2})$",
        .when_absent = "every layer has the window",
        .meaning = "Which layers have the window, such as 5:1, five with it and then one without, "
                   "and again; only with window_tokens."}});
}

void add_work(std::vector<FieldRow>& rows) {
  rows.insert(
      rows.end(),
      {{.name = "prompt_tokens",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::prompt_tokens,
        .integers = IntegerRange{1, kvcache::kMaxPlanTokens},
        .when_absent = "what new_tokens leaves of the context; half of it without both",
        .meaning = "Tokens of the prompt, for passes and scores; any number, whatever the "
                   "context."},
       {.name = "new_tokens",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::new_tokens,
        .integers = IntegerRange{0, kvcache::kMaxPlanTokens},
        .when_absent = "what prompt_tokens leaves of the context",
        .meaning = "Tokens to generate, for passes and scores; 0 counts as 1, since the prompt is "
                   "read."},
       {.name = "budget_bytes",
        .kind = K::kInteger,
        .users = kOfPlan,
        .member = &PlanFields::budget_bytes,
        .integers = IntegerRange{0, kvcache::kMaxPlanBytes},
        .when_absent = "the server's KV budget with the served model, else none",
        .meaning = "Bytes to fit sequences into."}});
}

}  // namespace

void add_plan_rows(std::vector<FieldRow>& rows) {
  add_sources(rows);
  add_settings(rows);
  add_work(rows);
}

}  // namespace kvasir::server
