#include "kvcache/kv_formula.h"

namespace kvasir::kvcache {
namespace {

std::string counted(std::uint32_t count, const char* thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

std::string product(const KvLayerGroup& group, KvType type) {
  std::string text = "2 x " + counted(group.num_layers, "layer");
  if (group.window_tokens > 0) text += " (window " + std::to_string(group.window_tokens) + ")";
  text += " x " + counted(group.num_kv_heads, "KV head");
  text += " x " + std::to_string(group.head_dim);
  return text + " x " + std::to_string(element_bytes(type)) + " bytes";
}

}  // namespace

std::string bytes_per_token_formula(const KvGeometry& geometry) {
  std::string text;
  for (const KvLayerGroup& group : geometry.groups) {
    if (!text.empty()) text += " + ";
    text += product(group, geometry.type);
  }
  return text + " = " + std::to_string(geometry.bytes_per_token());
}

}  // namespace kvasir::kvcache
