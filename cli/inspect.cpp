#include "cli/inspect.h"

#include "cli/model_report.h"
#include "runtime/model/printable.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace kvasir::cli {
namespace {

using runtime::printable;
using Json = nlohmann::ordered_json;

constexpr std::size_t kShownElements = 6;     // of an array
constexpr std::size_t kShownTextBytes = 160;  // of a string, in the text form

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

// --- text -------------------------------------------------------------------------------------

std::string text_of(const std::string& value) {
  return '"' + printable(value, kShownTextBytes) + '"';
}
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(double value) { return Json(value).dump(); }
template <typename Integer>
std::string text_of(Integer value) {
  return std::to_string(value);
}

template <typename T>
std::string text_of(const std::vector<T>& values) {
  std::string text = std::to_string(values.size()) + " x [";
  for (std::size_t i = 0; i < std::min(values.size(), kShownElements); ++i) {
    text += (i == 0 ? "" : ", ") + text_of(static_cast<T>(values[i]));
  }
  return text + (values.size() > kShownElements ? ", ...]" : "]");
}

// A matrix [rows, cols] as it is read, slowest dimension first.
std::string shape_text(const runtime::GgufTensor& tensor) {
  std::string text;
  for (const std::uint64_t dim : tensor.dims) {
    text = std::to_string(dim) + (text.empty() ? "" : ", ") + text;
  }
  return '[' + text + ']';
}

void write_verdicts(const ModelReport& report, std::ostream& out) {
  out << "This build can" << (report.can_be_served() ? "" : "not") << " serve the model:\n";
  for (const Verdict& verdict : report.verdicts) {
    out << "  " << verdict.part << ": "
        << (verdict.problem.empty() ? "supported" : printable(verdict.problem, 1000)) << '\n';
  }
  out << "  instruction sets:";
  for (const IsaReport& isa : report.isas) {
    out << ' ' << isa.name << (isa.supported_by_cpu ? "" : " (not on this CPU)");
  }
  out << "; auto picks " << report.best_isa << "\n";
  if (!report.kernels.empty()) out << "  kernels: " << report.kernels << "\n";
}

void write_config(const runtime::ModelConfig& config, std::ostream& out) {
  out << "Model: architecture " << config.architecture << ", " << config.num_layers
      << " layers, width " << config.width << ", feed-forward width " << config.ffn_width << ", "
      << config.num_heads << " heads over " << config.num_kv_heads << " KV heads of "
      << config.head_dim << " dimensions, vocabulary " << config.vocab_size << ", context "
      << config.context_tokens << " tokens, " << (config.tied_head ? "tied" : "separate")
      << " output head\n";
}

std::vector<kvcache::KvLayerGroup> layer_groups(const runtime::ModelConfig& config) {
  return config.kv_geometry(kvcache::KvType::kF16, kvcache::kBlockTokens).groups;
}

void write_windows(const runtime::ModelConfig& config, std::ostream& out) {
  for (const kvcache::KvLayerGroup& group : layer_groups(config)) {
    if (group.window_tokens == 0) {
      if (group.num_layers == config.num_layers) return;
      out << "  " << group.num_layers << " layers keep all tokens\n";
    } else {
      out << "  " << group.num_layers << " layers keep a window of " << group.window_tokens
          << " tokens\n";
    }
  }
}

void write_kv_costs(const ModelReport& report, std::ostream& out) {
  out << "KV cache:\n";
  write_windows(*report.config, out);
  for (const KvCost& cost : report.kv_costs) {
    out << "  " << cost.type << ": 2 (K and V) x " << report.config->num_layers << " layers x "
        << report.config->num_kv_heads << " KV heads x " << report.config->head_dim
        << " dimensions x " << cost.element_bytes << " bytes = " << cost.bytes_per_token
        << " bytes per token, " << cost.tokens_per_gib << " tokens per GiB\n";
  }
}

void write_text(const ModelReport& report, std::ostream& out) {
  const runtime::GgufFile& file = *report.file;
  out << "File: " << printable(file.path(), 1000) << ", GGUF version " << file.version() << ", "
      << file.size_bytes() << " bytes\n";
  write_verdicts(report, out);
  if (report.config) {
    write_config(*report.config, out);
    write_kv_costs(report, out);
  }
  out << "Metadata: " << file.metadata().size() << " keys\n";
  for (const auto& [key, value] : file.metadata()) {
    out << "  " << printable(key) << " = "
        << std::visit([](const auto& held) { return text_of(held); }, value) << '\n';
  }
  out << "Tensors: " << file.tensors().size() << '\n';
  for (const auto& [type, sum] : report.tensor_types) {
    out << "  " << sum.num_tensors << " of " << type << ", " << sum.num_bytes << " bytes\n";
  }
  for (const runtime::GgufTensor& tensor : file.tensors()) {
    out << "  " << printable(tensor.name) << ' ' << shape_text(tensor) << ' '
        << runtime::type_info(tensor.type).name << ' ' << tensor.data.size() << " bytes\n";
  }
}

// --- JSON -------------------------------------------------------------------------------------

template <typename T>
Json json_of(const T& value) {
  if constexpr (IsVector<T>::value) {
    Json first = Json::array();
    for (std::size_t i = 0; i < std::min(value.size(), kShownElements); ++i) {
      first.push_back(static_cast<typename T::value_type>(value[i]));
    }
    return {{"length", value.size()}, {"first", first}};
  } else {
    return value;
  }
}

Json json_of_tensor(const runtime::GgufTensor& tensor) {
  std::vector<std::uint64_t> shape(tensor.dims.rbegin(), tensor.dims.rend());
  return {{"name", tensor.name},
          {"shape", shape},
          {"type", runtime::type_info(tensor.type).name},
          {"bytes", tensor.data.size()}};
}

Json json_of_groups(const runtime::ModelConfig& config) {
  Json groups = Json::array();
  for (const kvcache::KvLayerGroup& group : layer_groups(config)) {
    groups.push_back({{"layers", group.num_layers}, {"window_tokens", group.window_tokens}});
  }
  return groups;
}

Json json_of_config(const runtime::ModelConfig& config) {
  return {{"architecture", config.architecture}, {"name", config.name},
          {"layers", config.num_layers},         {"width", config.width},
          {"ffn_width", config.ffn_width},       {"heads", config.num_heads},
          {"kv_heads", config.num_kv_heads},     {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},     {"context_tokens", config.context_tokens},
          {"tied_head", config.tied_head},       {"layer_groups", json_of_groups(config)}};
}

Json json_of_support(const ModelReport& report) {
  Json parts = Json::object();
  for (const Verdict& verdict : report.verdicts) {
    parts[std::string(verdict.part)] = {{"supported", verdict.problem.empty()}};
    if (!verdict.problem.empty()) parts[std::string(verdict.part)]["why_not"] = verdict.problem;
  }
  Json isas = Json::array();
  for (const IsaReport& isa : report.isas) {
    isas.push_back({{"name", isa.name}, {"on_this_cpu", isa.supported_by_cpu}});
  }
  return {{"can_be_served", report.can_be_served()},
          {"parts", parts},
          {"instruction_sets", isas},
          {"auto_picks", report.best_isa},
          {"kernels", report.kernels}};
}

// The reader has refused keys that are there twice, so they are appended without being looked up:
// looking up 65 536 keys of a hostile file one by one takes seconds.
Json json_of_metadata(const runtime::GgufFile& file) {
  Json::object_t object;
  Json::object_t::Container& entries = object;
  for (const auto& [key, value] : file.metadata()) {
    entries.emplace_back(key, std::visit([](const auto& held) { return json_of(held); }, value));
  }
  return object;
}

Json json_of_report(const ModelReport& report) {
  const runtime::GgufFile& file = *report.file;
  Json json{{"file", file.path()},
            {"gguf_version", file.version()},
            {"bytes", file.size_bytes()},
            {"support", json_of_support(report)}};
  if (report.config) {
    json["model"] = json_of_config(*report.config);
    for (const KvCost& cost : report.kv_costs) {
      json["kv"][std::string(cost.type)] = {{"bytes_per_token", cost.bytes_per_token},
                                            {"tokens_per_gib", cost.tokens_per_gib}};
    }
  }
  json["metadata"] = json_of_metadata(file);
  json["tensors"] = Json::array();
  for (const runtime::GgufTensor& tensor : file.tensors()) {
    json["tensors"].push_back(json_of_tensor(tensor));
  }
  return json;
}

// ASCII only, so that no control character of the file reaches a terminal; bytes that are no UTF-8
// become U+FFFD.
void write_json(const ModelReport& report, std::ostream& out) {
  constexpr int kIndent = 2;
  out << json_of_report(report).dump(kIndent, ' ', true, Json::error_handler_t::replace) << '\n';
}

}  // namespace

int run_inspect(const std::string& path, bool json) {
  return run_inspect(path, json, std::cout, std::cerr);
}

int run_inspect(const std::string& path, bool json, std::ostream& out, std::ostream& errors) {
  const auto file = runtime::GgufFile::open(path);
  if (!file) {
    errors << file.error().message << '\n';
    return 2;
  }
  const ModelReport report = report_on(**file);
  if (json) {
    write_json(report, out);
  } else {
    write_text(report, out);
  }
  return 0;
}

}  // namespace kvasir::cli
