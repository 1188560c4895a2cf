// Which layers see a window and how they rotate: what files of each family say, what they leave to
// the family, and what of it is refused.
#include "runtime/model/layer_kinds.h"

#include "tests/runtime/model/small_model.h"
#include "tests/support/catch.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace kvasir::runtime;
using kvasir::kvcache::KvType;
using kvasir::runtime::test::float_data;
using kvasir::runtime::test::small_model;
using kvasir::runtime::test::verdict_on;
using kvasir::test::ByteWriter;
using kvasir::test::GgufKind;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

constexpr const char* kWindow = ".attention.sliding_window";
constexpr const char* kPattern = ".attention.sliding_window_pattern";

ModelConfig config_of(const GgufWriter& writer) {
  const MemoryFile file(writer.bytes());
  const auto opened = GgufFile::open(file.path());
  REQUIRE(opened);
  auto config = read_model_config(**opened);
  INFO((config ? "" : config.error().message));
  REQUIRE(config);
  return *config;
}

/// Twelve layers, of which only the configuration is read.
GgufWriter windowed_model(const std::string& architecture) {
  GgufWriter writer = small_model(architecture);
  writer.set(architecture + ".block_count", 12U);
  writer.set(architecture + kWindow, 16U);
  return writer;
}

void set_bools(GgufWriter& writer, const std::string& key, const std::vector<bool>& values) {
  ByteWriter bytes;
  bytes.number(static_cast<std::uint32_t>(GgufKind::kBool)).number(std::uint64_t{values.size()});
  for (const bool value : values) bytes.number(std::uint8_t{value});
  writer.set_raw(key, GgufKind::kArray, bytes.bytes());
}

std::vector<std::uint32_t> windows_of(const ModelConfig& config) {
  std::vector<std::uint32_t> windows;
  for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
    windows.push_back(config.layer_kinds[config.kind_index(layer)].window_tokens);
  }
  return windows;
}

void check_refused(const GgufWriter& writer, const std::string& expected) {
  const std::string verdict = verdict_on(writer.bytes());
  INFO("verdict: " << verdict);
  CHECK(verdict.find(expected) != std::string::npos);
  CHECK(verdict.find('\n') == std::string::npos);
}

/// A file of one layer with all tensors of Gemma 3.
GgufWriter small_gemma() {
  GgufWriter writer = small_model("gemma3");
  for (const auto& [name, size] : {std::pair<const char*, std::uint64_t>{"attn_q_norm", 8},
                                   {"attn_k_norm", 8},
                                   {"post_attention_norm", 32},
                                   {"post_ffw_norm", 32}}) {
    writer.add_tensor(
        {std::string("blk.0.") + name + ".weight", {size}, 0, float_data(size), std::nullopt});
  }
  return writer;
}

}  // namespace

TEST_CASE("layer kinds: without a window all layers are alike", "[runtime]") {
  for (const char* architecture : {"llama", "qwen2", "gemma3"}) {
    GgufWriter writer = windowed_model(architecture);
    for (const bool zero : {false, true}) {
      if (zero) writer.set(std::string(architecture) + kWindow, 0U);
      if (!zero) writer.erase(std::string(architecture) + kWindow);
      const ModelConfig config = config_of(writer);
      REQUIRE(config.layer_kinds.size() == 1);
      CHECK(config.layer_kinds[0].window_tokens == 0);
      CHECK(config.kv_geometry(KvType::kF16, 32).groups.size() == 1);
      CHECK(config.kv_geometry(KvType::kF16, 32).group_of_layer.empty());
    }
  }
}

TEST_CASE("layer kinds: a window of llama or qwen2 is of all layers", "[runtime]") {
  for (const char* architecture : {"llama", "qwen2"}) {
    const ModelConfig config = config_of(windowed_model(architecture));
    CHECK(windows_of(config) == std::vector<std::uint32_t>(12, 16));
    const auto geometry = config.kv_geometry(KvType::kF16, 32);
    REQUIRE(geometry.groups.size() == 1);
    CHECK(geometry.groups[0] == kvasir::kvcache::KvLayerGroup{12, 2, 8, 16});
    CHECK(config.layer_kinds[0].rope.inverse_frequency[1] ==
          Approx(0.1).epsilon(1e-12));  // as without a window: 10000^(-2/8)
  }
}

TEST_CASE("layer kinds: every sixth layer of Gemma 3 sees all, and rotates in its own way",
          "[runtime]") {
  GgufWriter writer = windowed_model("gemma3");
  writer.set("gemma3.rope.freq_base", 1e6F);
  writer.set_text("gemma3.rope.scaling.type", "linear").set("gemma3.rope.scaling.factor", 8.0F);
  const ModelConfig config = config_of(writer);
  CHECK(windows_of(config) ==
        std::vector<std::uint32_t>{16, 16, 16, 16, 16, 0, 16, 16, 16, 16, 16, 0});
  const auto& full = config.layer_kinds[0].rope;
  const auto& local = config.layer_kinds[1].rope;
  for (std::uint32_t i = 0; i < 4; ++i) {
    CHECK(full.inverse_frequency[i] == Approx(std::pow(1e6, -2.0 * i / 8) / 8.0).epsilon(1e-12));
    CHECK(local.inverse_frequency[i] == Approx(std::pow(1e4, -2.0 * i / 8)).epsilon(1e-12));
  }
  CHECK(full.pairs == RopePairs::kHalves);
  CHECK(local.pairs == RopePairs::kHalves);

  const auto geometry = config.kv_geometry(KvType::kF16, 32);
  REQUIRE(geometry.groups.size() == 2);
  CHECK(geometry.groups[0] == kvasir::kvcache::KvLayerGroup{2, 2, 8, 0});
  CHECK(geometry.groups[1] == kvasir::kvcache::KvLayerGroup{10, 2, 8, 16});
  CHECK(geometry.group_of_layer == std::vector<std::uint8_t>{1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0});
  CHECK(geometry.layers_per_block() == 2);
}

TEST_CASE("layer kinds: a file may name the pattern and the local rotary base", "[runtime]") {
  GgufWriter period = windowed_model("gemma3");
  period.set(std::string("gemma3") + kPattern, 4U).set("gemma3.rope.freq_base_swa", 500.0F);
  const ModelConfig config = config_of(period);
  CHECK(windows_of(config) ==
        std::vector<std::uint32_t>{16, 16, 16, 0, 16, 16, 16, 0, 16, 16, 16, 0});
  CHECK(config.layer_kinds[1].rope.inverse_frequency[1] ==
        Approx(std::pow(500.0, -2.0 / 8)).epsilon(1e-12));

  GgufWriter all = windowed_model("gemma3");
  all.set(std::string("gemma3") + kPattern, 0U);
  CHECK(windows_of(config_of(all)) == std::vector<std::uint32_t>(12, 16));
  GgufWriter none = windowed_model("gemma3");
  none.set(std::string("gemma3") + kPattern, 1U);
  CHECK(windows_of(config_of(none)) == std::vector<std::uint32_t>(12, 0));

  GgufWriter listed = windowed_model("llama");
  std::vector<bool> windowed(12, false);
  windowed[3] = windowed[4] = true;
  set_bools(listed, std::string("llama") + kPattern, windowed);
  CHECK(windows_of(config_of(listed)) ==
        std::vector<std::uint32_t>{0, 0, 0, 16, 16, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("layer kinds: a window that no sequence outgrows is none, but layers rotate as before",
          "[runtime]") {
  GgufWriter writer = windowed_model("gemma3");
  writer.set(std::string("gemma3") + kWindow, 64U);  // the context
  writer.set("gemma3.rope.freq_base", 1e6F);
  const ModelConfig config = config_of(writer);
  CHECK(windows_of(config) == std::vector<std::uint32_t>(12, 0));
  CHECK(config.kv_geometry(KvType::kF16, 32).groups.size() == 1);
  REQUIRE(config.layer_kinds.size() == 2);
  CHECK(config.kind_index(4) == 1);
  CHECK(config.kind_index(5) == 0);
  writer.set(std::string("gemma3") + kWindow, 63U);
  CHECK(windows_of(config_of(writer))[0] == 63);
}

TEST_CASE("layer kinds: keys that say nothing usable are refused by name", "[runtime]") {
  GgufWriter text = windowed_model("gemma3");
  text.set_text(std::string("gemma3") + kPattern, "5:1");
  check_refused(text, "gemma3.attention.sliding_window_pattern\" is no unsigned integer");
  GgufWriter few = windowed_model("gemma3");
  set_bools(few, std::string("gemma3") + kPattern, std::vector<bool>(11, true));
  check_refused(few, "sliding_window_pattern\" has 11 entries for 12 layers");
  GgufWriter window = windowed_model("llama");
  window.set(std::string("llama") + kWindow, 16.0F);
  check_refused(window, "llama.attention.sliding_window\" is no unsigned integer");
  GgufWriter base = windowed_model("gemma3");
  base.set("gemma3.rope.freq_base_swa", 1.0F);
  check_refused(base, "gemma3.rope.freq_base_swa\" is 1.0");
}

TEST_CASE("Gemma 3: a file of it is taken whole, and each of its norms is asked for", "[runtime]") {
  CHECK(verdict_on(small_gemma().bytes()) == "");
  for (const char* name : {"attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"}) {
    GgufWriter writer = small_gemma();
    writer.erase_tensor(std::string("blk.0.") + name + ".weight");
    check_refused(writer, std::string(name) + ".weight\" is missing");
  }
  // No other family uses them.
  GgufWriter llama = small_model("llama");
  llama.add_tensor({"blk.0.post_ffw_norm.weight", {32}, 0, float_data(32), std::nullopt});
  check_refused(llama, "is not used by this architecture");
  GgufWriter capped = small_gemma();
  capped.set("gemma3.final_logit_softcapping", 30.0F);
  check_refused(capped, "gemma3.final_logit_softcapping\" is not known to this build");
}

TEST_CASE("Gemma 3: embeddings and scores are scaled as the family does", "[runtime]") {
  const ModelConfig gemma = config_of(small_gemma());
  CHECK(gemma.embedding_scale() == std::sqrt(32.0F));
  CHECK(gemma.attention_scale() == static_cast<float>(1.0 / std::sqrt(8.0)));
  CHECK(config_of(small_model("llama")).embedding_scale() == 1.0F);
  // The largest one, known by its layers, takes its heads for width / heads wide.
  GgufWriter largest = small_gemma();
  largest.set("gemma3.block_count", 62U).set("gemma3.attention.key_length", 16U);
  CHECK(config_of(largest).attention_scale() == static_cast<float>(1.0 / std::sqrt(8.0)));
  largest.set("gemma3.block_count", 61U);
  CHECK(config_of(largest).attention_scale() == 0.25F);
}
