// The calculator's known answers: published models, arithmetic by hand, windows by hand; and that
// no description within the bounds leaves 64 bits.
#include "kvcache/kv_calculator.h"

#include "tests/support/catch.h"

#include <cstdint>
#include <limits>

using namespace kvasir;
using namespace kvasir::kvcache;

namespace {

constexpr std::uint64_t kKib = 1ULL << 10U;
constexpr std::uint64_t kMib = 1ULL << 20U;
constexpr std::uint64_t kGib = 1ULL << 30U;

KvPlan planned(const PlanRequest& request) {
  auto plan = plan_kv(request);
  REQUIRE(plan.has_value());
  return std::move(*plan);
}

PlanRequest of_preset(std::string_view name, std::uint64_t context_tokens) {
  PlanRequest request;
  request.model = preset_model(name).value();
  request.context_tokens = context_tokens;
  return request;
}

/// Layers, KV heads and head_dim; as many query heads.
PlanRequest of_numbers(const KvLayerGroup& group, std::uint64_t context_tokens) {
  PlanRequest request;
  request.model.groups = {group};
  request.model.query_heads = group.num_kv_heads;
  request.context_tokens = context_tokens;
  return request;
}

/// Gemma 3 270M: every sixth layer sees everything, the others 512 positions; one KV head of 256.
PlanRequest gemma(std::uint64_t context_tokens) {
  PlanRequest request;
  request.model.groups = {{15, 1, 256, 512}, {3, 1, 256, 0}};
  request.model.query_heads = 4;
  request.context_tokens = context_tokens;
  return request;
}

/// Parameters of a Llama: embedding and head of their own or one for both, and each layer's four
/// attention matrices, three of the feed-forward network and two norms.
std::uint64_t llama_parameters(const PlanModel& model, std::uint64_t ffn, std::uint64_t vocabulary,
                               bool tied) {
  const KvLayerGroup& group = model.groups.front();
  const std::uint64_t width = std::uint64_t{model.query_heads} * group.head_dim;
  const std::uint64_t kv_width = std::uint64_t{group.num_kv_heads} * group.head_dim;
  const std::uint64_t layer =
      2 * width * width + 2 * width * kv_width + 3 * width * ffn + 2 * width;
  return (tied ? 1 : 2) * vocabulary * width + group.num_layers * layer + width;
}

}  // namespace

TEST_CASE("calculator: Llama 2 7B", "[kvcache]") {
  const KvPlan plan = planned(of_preset("llama-2-7b", 4096));
  CHECK(plan.bytes_per_token == 512 * kKib);
  CHECK(plan.bytes_per_sequence == 2 * kGib);
  CHECK(plan.total_bytes == 2 * kGib);
  const std::uint64_t weights = plan.asked.model.weights_bytes.value();
  CHECK(static_cast<double>(weights) / kGib == Approx(12.6).margin(0.05));
  CHECK(plan.ratio_to_weights.value() == Approx(0.16).margin(0.005));
  CHECK(plan.formula == "2 x 32 layers x 32 KV heads x 128 x 2 bytes = 524288");
  CHECK(plan.formula_total == "524288 bytes x 4096 tokens x 1 sequence = 2147483648");
  CHECK(plan.grouping_ratio == 1);

  PlanRequest eight = of_preset("llama-2-7b", 4096);
  eight.batch = 8;
  const KvPlan batch = planned(eight);
  CHECK(batch.bytes_per_sequence == 2 * kGib);
  CHECK(batch.total_bytes == 16 * kGib);
  CHECK(batch.total_bytes > weights);
  CHECK(batch.ratio_to_weights.value() > 1);
  CHECK(batch.formula_total == "524288 bytes x 4096 tokens x 8 sequences = 17179869184");
}

TEST_CASE("calculator: Llama 3 8B costs four times as much without grouping", "[kvcache]") {
  PlanRequest request = of_preset("llama-3-8b", 8192);
  const KvPlan grouped = planned(request);
  CHECK(grouped.bytes_per_token == 128 * kKib);
  CHECK(grouped.num_kv_heads == 8);
  request.grouping = false;
  const KvPlan ungrouped = planned(request);
  CHECK(ungrouped.bytes_per_token == 4 * grouped.bytes_per_token);
  CHECK(ungrouped.total_bytes == 4 * grouped.total_bytes);
  CHECK(ungrouped.num_kv_heads == 32);
  CHECK(ungrouped.formula == "2 x 32 layers x 32 KV heads x 128 x 2 bytes = 524288");
  CHECK(grouped.grouping_ratio == 4);
  CHECK(ungrouped.grouping_ratio == 4);
}

TEST_CASE("calculator: the other presets", "[kvcache]") {
  CHECK(planned(of_preset("llama-3-70b", 131'072)).total_bytes == 40 * kGib);
  CHECK(planned(of_preset("llama-2-70b", 4096)).bytes_per_token == 320 * kKib);
  CHECK(planned(of_preset("smollm2-135m", 2048)).bytes_per_token == 23'040);
  CHECK_FALSE(preset_model("llama-4").has_value());
  CHECK_FALSE(preset_model("").has_value());
}

TEST_CASE("calculator: the presets' weights are the sum of their matrices", "[kvcache]") {
  struct Case {
    std::string_view name;
    std::uint64_t ffn;
    std::uint64_t vocabulary;
    bool tied;
  };
  std::size_t checked = 0;
  for (const Case& each :
       {Case{"llama-2-7b", 11'008, 32'000, false}, Case{"llama-2-70b", 28'672, 32'000, false},
        Case{"llama-3-8b", 14'336, 128'256, false}, Case{"llama-3-70b", 28'672, 128'256, false},
        Case{"smollm2-135m", 1536, 49'152, true}}) {
    INFO(each.name);
    const PlanModel model = preset_model(each.name).value();
    CHECK(model.weights_bytes == 2 * llama_parameters(model, each.ffn, each.vocabulary, each.tied));
    CHECK(model.weights_from.ends_with("published parameters x 2 bytes (f16)"));
    ++checked;
  }
  CHECK(checked == preset_names().size());
}

TEST_CASE("calculator: 32 layers at long contexts, with and without grouping", "[kvcache]") {
  const KvPlan full = planned(of_numbers({32, 32, 128, 0}, 32'768));
  CHECK(full.total_bytes == 16 * kGib);
  PlanRequest request = of_numbers({32, 8, 128, 0}, 32'768);
  request.model.query_heads = 32;
  const KvPlan grouped = planned(request);
  CHECK(grouped.total_bytes == 4 * kGib);
  CHECK(grouped.grouping_ratio == 4);

  PlanRequest batch = of_numbers({32, 32, 128, 0}, 4096);
  batch.batch = 32;
  CHECK(planned(batch).total_bytes == 64 * kGib);
}

TEST_CASE("calculator: every element type counts its bytes", "[kvcache]") {
  PlanRequest request = of_preset("smollm2-135m", 100);
  for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kF32}) {
    request.type = type;
    const KvPlan plan = planned(request);
    CHECK(plan.bytes_per_token == 2ULL * 30 * 3 * 64 * element_bytes(type));
    CHECK(plan.total_bytes == plan.bytes_per_token * 100);
  }
  request.type = KvType::kF32;
  CHECK(planned(request).formula == "2 x 30 layers x 3 KV heads x 64 x 4 bytes = 46080");
}

TEST_CASE("calculator: weights that nobody knows have no ratio", "[kvcache]") {
  const KvPlan plan = planned(of_numbers({1, 1, 64, 0}, 10));
  CHECK_FALSE(plan.ratio_to_weights.has_value());
  CHECK_FALSE(plan.sequences_in_budget.has_value());
  CHECK_FALSE(plan.charge.sequences_in_budget.has_value());
  CHECK(plan.formula == "2 x 1 layer x 1 KV head x 64 x 2 bytes = 256");
}

TEST_CASE("calculator: whole sequences in a budget", "[kvcache]") {
  PlanRequest request = of_preset("llama-2-7b", 4096);
  request.budget_bytes = 7 * kGib;
  CHECK(planned(request).sequences_in_budget == 3U);
  request.budget_bytes = 2 * kGib;
  CHECK(planned(request).sequences_in_budget == 1U);
  request.budget_bytes = 2 * kGib - 1;
  CHECK(planned(request).sequences_in_budget == 0U);
  request.budget_bytes = 0;
  CHECK(planned(request).sequences_in_budget == 0U);
}

TEST_CASE("calculator: passes and scores with and without a cache", "[kvcache]") {
  PlanRequest request = of_preset("llama-2-7b", 4096);
  request.prompt_tokens = 4;
  request.new_tokens = 6;
  const KvPlan small = planned(request);
  CHECK(small.token_passes_with_cache == 9);
  CHECK(small.token_passes_without_cache == 39);
  CHECK(small.attention_scores_with_cache == 45);
  CHECK(small.attention_scores_without_cache == 155);
  request.prompt_tokens = 100;
  request.new_tokens = 1000;
  const KvPlan large = planned(request);
  CHECK(large.token_passes_with_cache == 1'099);
  CHECK(large.token_passes_without_cache == 599'500);
}

TEST_CASE("calculator: Gemma 3 270M, by hand", "[kvcache]") {
  // A token: 2 x 18 x 1 x 256 x 2 = 18 432 bytes, 15 360 of them in the windowed layers.
  const KvPlan inside = planned(gemma(512));
  CHECK(inside.bytes_per_token == 18'432);
  CHECK(inside.total_bytes == 512 * 18'432);
  const KvPlan plan = planned(gemma(32'768));
  REQUIRE(plan.groups.size() == 2);
  CHECK(plan.groups[0].bytes_per_token == 15'360);
  CHECK(plan.groups[0].kept_tokens == 512);
  CHECK(plan.groups[0].bytes_per_sequence == 7'864'320);
  CHECK(plan.groups[1].bytes_per_token == 3'072);
  CHECK(plan.groups[1].kept_tokens == 32'768);
  CHECK(plan.groups[1].bytes_per_sequence == 96 * kMib);
  CHECK(plan.bytes_per_sequence == 7'864'320 + 96 * kMib);
  CHECK(plan.formula ==
        "2 x 15 layers (window 512) x 1 KV head x 256 x 2 bytes + 2 x 3 layers x 1 KV head x 256 x "
        "2 bytes = 18432");
  CHECK(plan.formula_total ==
        "(15360 bytes x min(32768, 512) tokens + 3072 bytes x 32768 tokens) x 1 sequence = "
        "108527616");
  CHECK(plan.grouping_ratio == 4);

  PlanRequest all_heads = gemma(32'768);
  all_heads.grouping = false;
  CHECK(planned(all_heads).total_bytes == 4 * plan.total_bytes);
}

TEST_CASE("calculator: scores of windowed layers, and their mean", "[kvcache]") {
  PlanRequest request = gemma(1024);
  request.prompt_tokens = 514;
  request.new_tokens = 1;
  // 512 x 513 / 2 and twice 512 in a windowed layer, 514 x 515 / 2 in a full one.
  const KvPlan plan = planned(request);
  CHECK(plan.groups[0].attention_scores_with_cache == 131'328 + 1'024);
  CHECK(plan.groups[1].attention_scores_with_cache == 132'355);
  // (15 x 132 352 + 3 x 132 355) / 18 = 132 352.5, which goes down.
  CHECK(plan.attention_scores_with_cache == 132'352);
  CHECK(plan.attention_scores_without_cache == plan.attention_scores_with_cache);
  request.new_tokens = 2;  // texts of 514 and 515 tokens; 515 x 516 / 2 = 132 870
  const KvPlan two = planned(request);
  CHECK(two.groups[0].attention_scores_with_cache == 132'352 + 512);
  CHECK(two.groups[0].attention_scores_without_cache == 132'352 + 132'864);
  CHECK(two.groups[1].attention_scores_without_cache == 132'355 + 132'870);
}

TEST_CASE("calculator: a window laid over a model", "[kvcache]") {
  PlanRequest request = of_preset("llama-3-8b", 8192);
  request.window_tokens = 1024;
  const KvPlan all = planned(request);
  REQUIRE(all.groups.size() == 1);
  CHECK(all.total_bytes == 128 * kKib * 1024);
  CHECK(all.formula_total == "131072 bytes x min(8192, 1024) tokens x 1 sequence = 134217728");

  request.pattern = WindowPattern{5, 1};  // 32 layers: five whole periods, two more windowed ones
  const KvPlan mixed = planned(request);
  REQUIRE(mixed.groups.size() == 2);
  CHECK(mixed.groups[0].shape.num_layers == 27);
  CHECK(mixed.groups[0].shape.window_tokens == 1024);
  CHECK(mixed.groups[1].shape.num_layers == 5);
  CHECK(mixed.groups[1].shape.window_tokens == 0);
  CHECK(mixed.total_bytes == 4 * kKib * (27 * 1024 + 5 * 8192));

  request.pattern = WindowPattern{3, 4};  // four periods of 7, then three windowed and one full
  const KvPlan rest = planned(request);
  CHECK(rest.groups[0].shape.num_layers == 15);
  CHECK(rest.groups[1].shape.num_layers == 17);

  request.pattern = WindowPattern{40, 1};  // more than there are
  CHECK(planned(request).groups.size() == 1);

  PlanRequest unwindowed = gemma(4096);
  unwindowed.window_tokens = 0;  // the model's own windows away
  const KvPlan full = planned(unwindowed);
  CHECK(full.groups.size() == 1);
  CHECK(full.total_bytes == 4096 * 18'432);
}

TEST_CASE("calculator: what kvasir charges is whole blocks and room for a chunk", "[kvcache]") {
  PlanRequest request = of_preset("smollm2-135m", 33);
  request.budget_bytes = 7 * 32 * 23'040;  // seven blocks
  request.batch = 3;
  const KvPlan plan = planned(request);
  CHECK(plan.total_bytes == 3 * 33 * 23'040);
  CHECK(plan.charge.block_tokens == 32);
  CHECK(plan.charge.bytes_per_block == 32 * 23'040);
  CHECK(plan.charge.blocks_per_sequence == 2);
  CHECK(plan.charge.bytes_per_sequence == 64 * 23'040);
  CHECK(plan.charge.total_bytes == 3 * 64 * 23'040);
  CHECK(plan.charge.sequences_in_budget == 3U);
  CHECK(plan.sequences_in_budget == 6U);  // of 33 tokens each

  // Gemma: blocks of three layers, five in a stripe of the windowed ones, which keep at most
  // 512 + 256 - 1 tokens, in 24 stripes, and one stripe more; 32 768 tokens are 1024 stripes.
  PlanRequest windowed = gemma(32'768);
  windowed.largest_chunk = 256;
  const KvPlan charged = planned(windowed);
  CHECK(charged.charge.bytes_per_block == 32 * 3'072);
  CHECK(charged.charge.blocks_per_sequence == 25 * 5 + 1024);
  CHECK(charged.charge.bytes_per_sequence == (25 * 5 + 1024) * 32 * 3'072ULL);
  CHECK(charged.charge.largest_chunk == 256);
}

TEST_CASE("calculator: the largest description within the bounds is refused, not wrapped",
          "[kvcache]") {
  PlanRequest request =
      of_numbers({kMaxPlanLayers, kMaxPlanHeads, kMaxPlanHeadDim, 0}, kMaxPlanContext);
  request.type = KvType::kF32;
  request.batch = kMaxPlanBatch;
  const auto plan = plan_kv(request);
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().code == ErrorCode::kInvalidValue);
  CHECK(plan.error().param == "context_tokens");

  request.context_tokens = 1 << 10;  // 2^33 bytes a token: 2^43 a sequence
  CHECK(plan_kv(request).error().param == "batch");
  request.batch = 1 << 10;
  CHECK(planned(request).total_bytes == static_cast<std::uint64_t>(kMaxPlanBytes));
  request.batch = (1 << 10) + 1;
  CHECK_FALSE(plan_kv(request).has_value());

  // One token behind a window: the charge, 32 tokens and room for a chunk, is what is too much.
  PlanRequest windowed = request;
  windowed.context_tokens = kMaxPlanContext;
  windowed.window_tokens = 1;
  windowed.batch = 1 << 16;
  windowed.largest_chunk = 1 << 20;
  CHECK_FALSE(plan_kv(windowed).has_value());
}

TEST_CASE("calculator: the most tokens there may be keep their scores in 63 bits", "[kvcache]") {
  PlanRequest request = of_preset("llama-2-7b", 1);
  request.prompt_tokens = kMaxPlanTokens;
  request.new_tokens = kMaxPlanTokens;
  const KvPlan plan = planned(request);
  CHECK(plan.attention_scores_without_cache <
        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  CHECK(plan.attention_scores_without_cache > 1'000'000'000'000'000'000ULL);
}

TEST_CASE("calculator: patterns are read as they are written", "[kvcache]") {
  const auto five = window_pattern_from_text("5:1");
  REQUIRE(five.has_value());
  CHECK(five->windowed == 5);
  CHECK(five->full == 1);
  CHECK(window_pattern_from_text("1:0")->full == 0);
  CHECK(window_pattern_from_text("999:999").has_value());
  for (const char* bad : {"", ":", "5", "5:", ":1", "0:1", "5:1:1", "05:1", "5:01", "-5:1", "+5:1",
                          "5: 1", "1000:1", "5:1000", "a:b", "5/1", "5:1 "}) {
    INFO(bad);
    CHECK_FALSE(window_pattern_from_text(bad).has_value());
  }
}
