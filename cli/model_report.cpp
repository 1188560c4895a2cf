#include "cli/model_report.h"

#include "cli/load_model.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/model/pack_weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kForwardPass = "forward pass";
constexpr std::string_view kTokenizer = "tokenizer";
constexpr std::string_view kChatTemplate = "chat template";
constexpr std::uint64_t kGib = 1ULL << 30;
constexpr std::uint32_t kAnyBlockTokens = 32;  // bytes of a token do not depend on it

void judge_forward_pass(const runtime::GgufFile& file, ModelReport& report) {
  auto config = runtime::read_model_config(file);
  if (!config) {
    report.verdicts.push_back({kForwardPass, config.error().message});
    return;
  }
  const auto weights = runtime::read_weights(file, *config);
  report.verdicts.push_back({kForwardPass, weights ? "" : weights.error().message});
  if (weights) {
    report.kernels =
        runtime::kernels_text(runtime::planned_weights(*weights, runtime::Activations::kInt8),
                              runtime::kernels_for(runtime::best_isa()));
  }
  report.config = std::move(*config);
}

void judge_text_side(const runtime::GgufFile& file, ModelReport& report) {
  const auto vocabulary = read_vocabulary(file);
  if (!vocabulary) {
    report.verdicts.push_back({kTokenizer, vocabulary.error().message});
    return;
  }
  const auto tokenizer = text::Tokenizer::create(*vocabulary);
  report.verdicts.push_back({kTokenizer, tokenizer ? "" : tokenizer.error().message});
  if (!tokenizer) return;
  if (!vocabulary->chat_template) {
    report.verdicts.push_back({kChatTemplate, "the file has none (see --chat-template)"});
    return;
  }
  const auto made = text::ChatTemplate::create(*vocabulary->chat_template, **tokenizer);
  report.verdicts.push_back({kChatTemplate, made ? "" : made.error().message});
}

std::vector<KvCost> kv_costs(const runtime::ModelConfig& config) {
  std::vector<KvCost> costs;
  for (const auto type : {kvcache::KvType::kF32, kvcache::KvType::kF16, kvcache::KvType::kBf16}) {
    const std::uint64_t bytes = config.kv_geometry(type, kAnyBlockTokens).bytes_per_token();
    costs.push_back(
        {kvcache::kv_type_name(type), kvcache::element_bytes(type), bytes, kGib / bytes});
  }
  return costs;
}

}  // namespace

bool ModelReport::can_be_served() const {
  for (const Verdict& verdict : verdicts) {
    if (verdict.part != kChatTemplate && !verdict.problem.empty()) return false;
  }
  return true;
}

ModelReport report_on(const runtime::GgufFile& file) {
  ModelReport report;
  report.file = &file;
  judge_forward_pass(file, report);
  judge_text_side(file, report);
  if (report.config) report.kv_costs = kv_costs(*report.config);
  for (const runtime::GgufTensor& tensor : file.tensors()) {
    TypeSum& sum = report.tensor_types[runtime::type_info(tensor.type).name];
    sum.num_tensors += 1;
    sum.num_bytes += tensor.data.size();
  }
  for (const runtime::Isa isa : runtime::compiled_isas()) {
    report.isas.push_back({runtime::isa_name(isa), runtime::cpu_supports(isa)});
  }
  report.best_isa = runtime::isa_name(runtime::best_isa());
  return report;
}

}  // namespace kvasir::cli
