#include "kvcache/kv_calculator.h"

#include "core/check.h"
#include "kvcache/kv_formula.h"
#include "kvcache/kv_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace kvasir::kvcache {
namespace {

__extension__ using Wide = unsigned __int128;

struct Preset {
  std::string_view name;
  std::uint32_t layers;
  std::uint32_t kv_heads;
  std::uint32_t query_heads;
  std::uint32_t head_dim;
  std::uint32_t context_tokens;
  std::uint64_t parameters;
};

// Shapes and counts as the models' publishers give them; a test makes the counts anew from the
// widths of all layers.
constexpr std::array kPresets = {
    Preset{"llama-2-7b", 32, 32, 32, 128, 4096, 6'738'415'616},
    Preset{"llama-2-70b", 80, 8, 64, 128, 4096, 68'976'648'192},
    Preset{"llama-3-8b", 32, 8, 32, 128, 8192, 8'030'261'248},
    Preset{"llama-3-70b", 80, 8, 64, 128, 8192, 70'553'706'496},
    Preset{"smollm2-135m", 30, 3, 9, 64, 8192, 134'515'008},
};

constexpr auto kPresetNames = [] {
  std::array<std::string_view, kPresets.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kPresets[i].name;
  return names;
}();

std::optional<std::uint32_t> pattern_part(std::string_view digits) {
  if (digits.empty() || digits.size() > 3) return std::nullopt;
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  std::uint32_t count = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return std::nullopt;
  return count;
}

/// "1 layer", "2 layers".
std::string counted(std::uint64_t count, std::string_view noun) {
  std::string text = std::to_string(count) + " ";
  text += noun;
  if (count != 1) text += "s";
  return text;
}

/// The layers that attend alike, as the request wants them.
std::vector<KvLayerGroup> counted_groups(const PlanRequest& request) {
  std::vector<KvLayerGroup> groups = request.model.groups;
  if (!request.grouping) {
    for (KvLayerGroup& group : groups) group.num_kv_heads = request.model.query_heads;
  }
  if (!request.window_tokens) return groups;
  KvLayerGroup windowed = groups.front();
  windowed.window_tokens = *request.window_tokens;
  windowed.num_layers = 0;
  for (const KvLayerGroup& group : groups) windowed.num_layers += group.num_layers;
  const WindowPattern pattern = request.pattern;
  const std::uint32_t period = pattern.windowed + pattern.full;
  const std::uint32_t rest = windowed.num_layers % period;  // these begin with windowed ones
  KvLayerGroup full = windowed;
  full.window_tokens = 0;
  full.num_layers = windowed.num_layers / period * pattern.full +
                    (rest > pattern.windowed ? rest - pattern.windowed : 0);
  windowed.num_layers -= full.num_layers;
  if (full.num_layers == 0) return {windowed};
  return {windowed, full};
}

PlanGroup plan_group(const KvLayerGroup& shape, const PlanRequest& request) {
  PlanGroup group;
  group.shape = shape;
  group.kept_tokens = request.context_tokens;
  if (shape.window_tokens > 0)
    group.kept_tokens = std::min<std::uint64_t>(group.kept_tokens, shape.window_tokens);
  group.bytes_per_token =
      2ULL * shape.num_layers * shape.num_kv_heads * shape.head_dim * element_bytes(request.type);
  group.bytes_per_sequence = group.bytes_per_token * group.kept_tokens;
  group.attention_scores_with_cache =
      attention_scores_with_cache(shape.window_tokens, request.prompt_tokens, request.new_tokens);
  group.attention_scores_without_cache = attention_scores_without_cache(
      shape.window_tokens, request.prompt_tokens, request.new_tokens);
  return group;
}

std::uint64_t mean_over_layers(const KvPlan& plan, std::uint64_t PlanGroup::*scores) {
  Wide sum = 0;
  for (const PlanGroup& group : plan.groups) sum += Wide{group.*scores} * group.shape.num_layers;
  return static_cast<std::uint64_t>(sum / plan.num_layers);
}

std::string total_formula(const KvPlan& plan) {
  std::string sum;
  for (const PlanGroup& group : plan.groups) {
    if (!sum.empty()) sum += " + ";
    sum += counted(group.bytes_per_token, "byte") + " x ";
    if (group.shape.window_tokens == 0) {
      sum += counted(group.kept_tokens, "token");
    } else {
      sum += "min(" + std::to_string(plan.asked.context_tokens) + ", " +
             std::to_string(group.shape.window_tokens) + ") tokens";
    }
  }
  if (plan.groups.size() > 1) sum = "(" + sum + ")";
  return sum + " x " + counted(plan.asked.batch, "sequence") + " = " +
         std::to_string(plan.total_bytes);
}

KvGeometry charged_geometry(const KvPlan& plan) {
  KvGeometry geometry;
  for (const PlanGroup& group : plan.groups) geometry.groups.push_back(group.shape);
  geometry.type = plan.asked.type;
  geometry.largest_chunk = plan.asked.largest_chunk;
  return geometry;
}

/// Refuses what would leave the numbers that everybody can read.
Result<void> check_bytes(Wide sequence_bytes, std::uint64_t batch) {
  constexpr auto kMost = static_cast<Wide>(kMaxPlanBytes);
  if (sequence_bytes * batch <= kMost) return {};
  const std::string param = sequence_bytes > kMost ? "context_tokens" : "batch";
  return fail(ErrorCode::kInvalidValue,
              param + " must be such that all sequences together take at most " +
                  std::to_string(kMaxPlanBytes) + " bytes, in whole blocks",
              param);
}

Result<void> fill_bytes(KvPlan& plan) {
  const PlanRequest& asked = plan.asked;
  for (const PlanGroup& group : plan.groups) {
    plan.bytes_per_token += group.bytes_per_token;
    plan.bytes_per_sequence += group.bytes_per_sequence;
  }
  const KvGeometry geometry = charged_geometry(plan);
  PlanCharge& charge = plan.charge;
  charge.block_tokens = geometry.block_tokens;
  charge.largest_chunk = geometry.largest_chunk;
  charge.bytes_per_block = geometry.bytes_per_block();
  charge.blocks_per_sequence = geometry.blocks_for(asked.context_tokens);
  const Wide charged = Wide{charge.bytes_per_block} * charge.blocks_per_sequence;
  const Wide larger = std::max<Wide>(charged, plan.bytes_per_sequence);
  if (auto fits = check_bytes(larger, asked.batch); !fits) return fits;
  plan.total_bytes = plan.bytes_per_sequence * asked.batch;
  charge.bytes_per_sequence = static_cast<std::uint64_t>(charged);
  charge.total_bytes = charge.bytes_per_sequence * asked.batch;
  if (asked.budget_bytes) {
    plan.sequences_in_budget = *asked.budget_bytes / plan.bytes_per_sequence;
    charge.sequences_in_budget =
        geometry.blocks_in(*asked.budget_bytes) / charge.blocks_per_sequence;
  }
  if (asked.model.weights_bytes) {
    plan.ratio_to_weights =
        static_cast<double>(plan.total_bytes) / static_cast<double>(*asked.model.weights_bytes);
  }
  return {};
}

void fill_work(KvPlan& plan) {
  const PlanRequest& asked = plan.asked;
  plan.token_passes_with_cache = token_passes_with_cache(asked.prompt_tokens, asked.new_tokens);
  plan.token_passes_without_cache =
      token_passes_without_cache(asked.prompt_tokens, asked.new_tokens);
  plan.attention_scores_with_cache =
      mean_over_layers(plan, &PlanGroup::attention_scores_with_cache);
  plan.attention_scores_without_cache =
      mean_over_layers(plan, &PlanGroup::attention_scores_without_cache);
}

}  // namespace

std::span<const std::string_view> preset_names() { return kPresetNames; }

std::optional<PlanModel> preset_model(std::string_view name) {
  constexpr std::uint64_t kBytesOfAParameter = 2;
  const auto* preset = std::find_if(kPresets.begin(), kPresets.end(),
                                    [name](const Preset& each) { return each.name == name; });
  if (preset == kPresets.end()) return std::nullopt;
  PlanModel model;
  model.name = name;
  model.groups = {{.num_layers = preset->layers,
                   .num_kv_heads = preset->kv_heads,
                   .head_dim = preset->head_dim,
                   .window_tokens = 0}};
  model.query_heads = preset->query_heads;
  model.context_tokens = preset->context_tokens;
  model.weights_bytes = preset->parameters * kBytesOfAParameter;
  model.weights_from = std::to_string(preset->parameters) + " published parameters x 2 bytes (f16)";
  return model;
}

std::optional<WindowPattern> window_pattern_from_text(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto windowed = pattern_part(text.substr(0, colon));
  const auto full = pattern_part(text.substr(colon + 1));
  if (!windowed || !full || *windowed == 0) return std::nullopt;
  return WindowPattern{*windowed, *full};
}

Result<KvPlan> plan_kv(PlanRequest request) {
  KVASIR_CHECK(!request.model.groups.empty());
  const std::uint32_t model_kv_heads = request.model.groups.front().num_kv_heads;
  KVASIR_CHECK(request.model.query_heads % model_kv_heads == 0,
               request.model.query_heads << " query heads over " << model_kv_heads);
  KvPlan plan;
  plan.asked = std::move(request);
  for (const KvLayerGroup& shape : counted_groups(plan.asked)) {
    plan.groups.push_back(plan_group(shape, plan.asked));
    plan.num_layers += shape.num_layers;
  }
  plan.num_kv_heads = plan.groups.front().shape.num_kv_heads;
  plan.head_dim = plan.groups.front().shape.head_dim;
  plan.grouping_ratio = plan.asked.model.query_heads / model_kv_heads;
  if (auto fits = fill_bytes(plan); !fits) return tl::unexpected<Error>(fits.error());
  fill_work(plan);
  plan.formula = bytes_per_token_formula(charged_geometry(plan));
  plan.formula_total = total_formula(plan);
  return plan;
}

}  // namespace kvasir::kvcache
