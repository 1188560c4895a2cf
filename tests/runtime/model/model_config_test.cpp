// Hyperparameters from metadata: what is taken, and that everything which this build would compute
// wrongly is refused by the name of its key.
#include "runtime/model/model_config.h"

#include "tests/runtime/model/small_model.h"
#include "tests/support/catch.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

using namespace kvasir::runtime;
using kvasir::kvcache::KvType;
using kvasir::runtime::test::float_data;
using kvasir::runtime::test::small_model;
using kvasir::runtime::test::verdict_on;
using kvasir::test::GgufKind;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

ModelConfig config_of(const GgufWriter& writer) {
  const MemoryFile file(writer.bytes());
  const auto opened = GgufFile::open(file.path());
  REQUIRE(opened);
  auto config = read_model_config(**opened);
  INFO((config ? "" : config.error().message));
  REQUIRE(config);
  return *config;
}

using Change = std::function<void(GgufWriter&)>;

/// The model is refused after the change, by one line with all of `expected`.
void check_refused(const Change& change, const std::vector<std::string>& expected) {
  GgufWriter writer = small_model();
  change(writer);
  const std::string verdict = verdict_on(writer.bytes());
  INFO("verdict: " << verdict);
  CHECK(verdict.find('\n') == std::string::npos);
  for (const std::string& part : expected) {
    INFO("expected in the message: " << part);
    CHECK(verdict.find(part) != std::string::npos);
  }
}

void check_taken(const Change& change) {
  GgufWriter writer = small_model();
  change(writer);
  CHECK(verdict_on(writer.bytes()) == "");
}

}  // namespace

TEST_CASE("ModelConfig: the small model's numbers are read", "[runtime]") {
  const ModelConfig config = config_of(small_model());
  CHECK(config.architecture == "llama");
  CHECK(config.name == "small");
  CHECK(config.family == ModelFamily::kLlama);
  CHECK(config.num_layers == 1);
  CHECK(config.width == 32);
  CHECK(config.ffn_width == 32);
  CHECK(config.num_heads == 4);
  CHECK(config.num_kv_heads == 2);
  CHECK(config.head_dim == 8);
  CHECK(config.vocab_size == 10);
  CHECK(config.context_tokens == 64);
  CHECK(config.rms_epsilon == 1e-5F);
  CHECK(config.tied_head);
  CHECK(config.layer_kinds[0].rope.pairs == RopePairs::kAdjacent);
  CHECK(config.layer_kinds[0].rope.dims == 8);
}

TEST_CASE("ModelConfig: qwen2 rotates halves and reads its own keys", "[runtime]") {
  const ModelConfig config = config_of(small_model("qwen2"));
  CHECK(config.family == ModelFamily::kQwen2);
  CHECK(config.layer_kinds[0].rope.pairs == RopePairs::kHalves);
  CHECK(config.num_kv_heads == 2);
}

TEST_CASE("ModelConfig: KV bytes count KV heads", "[runtime]") {
  const auto geometry = config_of(small_model()).kv_geometry(KvType::kF16, 32);
  CHECK(geometry.bytes_per_token() == 2 * 1 * 2 * 8 * 2);
  CHECK(geometry.block_tokens == 32);
  REQUIRE(geometry.groups.size() == 1);
  CHECK(geometry.groups[0].window_tokens == 0);
}

TEST_CASE("ModelConfig: what is left out has the family's default", "[runtime]") {
  GgufWriter writer = small_model();
  writer.erase("llama.attention.head_count_kv").erase("general.name").erase("llama.rope.freq_base");
  writer.tensor("blk.0.attn_k.weight").dims = {32, 32};
  writer.tensor("blk.0.attn_k.weight").data = float_data(1024);
  const ModelConfig config = config_of(writer);
  CHECK(config.num_kv_heads == 4);
  CHECK(config.layer_kinds[0].rope.inverse_frequency[1] ==
        Approx(0.1).epsilon(1e-12));  // 10000^(-2/8)
  CHECK_FALSE(config.name.empty());
}

TEST_CASE("ModelConfig: a head of its own makes the embedding untied", "[runtime]") {
  GgufWriter writer = small_model();
  writer.add_tensor({"output.weight", {32, 10}, 0, float_data(320), std::nullopt});
  CHECK_FALSE(config_of(writer).tied_head);
}

TEST_CASE("ModelConfig: other architectures and files that are no model are refused", "[runtime]") {
  check_refused([](GgufWriter& w) { w.erase("general.architecture"); },
                {"\"general.architecture\" is missing"});
  check_refused(
      [](GgufWriter& w) { w.set_text("general.architecture", "mamba\x1b[2J"); },
      {"\"general.architecture\" is \"mamba\\x1b[2J\"", "runs \"llama\", \"qwen2\", \"gemma3\""});
  check_refused([](GgufWriter& w) { w.set("general.architecture", 5U); }, {"is no string"});
  check_refused([](GgufWriter& w) { w.set_text("general.type", "adapter"); }, {"adapter"});
  check_refused([](GgufWriter& w) { w.set("split.count", 3U); }, {"split.count", "merged first"});
  check_refused([](GgufWriter& w) { w.set("general.quantization_version", 1U); },
                {"general.quantization_version", "is 1"});
  check_taken([](GgufWriter& w) { w.set_text("general.type", "model").set("split.count", 1U); });
}

TEST_CASE("ModelConfig: sizes that are missing, of another type or out of range are refused",
          "[runtime]") {
  for (const char* name :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    const std::string key = std::string("llama.") + name;
    check_refused([&](GgufWriter& w) { w.erase(key); }, {key, "is missing"});
    check_refused([&](GgufWriter& w) { w.set_text(key, "8"); }, {key, "is no"});
    check_refused([&](GgufWriter& w) { w.set(key, 0U); }, {key, "is 0"});
    check_refused([&](GgufWriter& w) { w.set(key, 0xFFFFFFFFU); }, {key, "4294967295"});
  }
  check_refused([](GgufWriter& w) { w.set("llama.attention.layer_norm_rms_epsilon", -1e-5F); },
                {"layer_norm_rms_epsilon"});
  check_refused(
      [](GgufWriter& w) { w.set("llama.attention.layer_norm_rms_epsilon", std::nanf("")); },
      {"layer_norm_rms_epsilon", "not finite"});
}

TEST_CASE("ModelConfig: heads that do not fit together are refused", "[runtime]") {
  check_refused([](GgufWriter& w) { w.set("llama.attention.head_count_kv", 3U); },
                {"llama.attention.head_count_kv", "does not divide the 4 heads"});
  check_refused([](GgufWriter& w) { w.set("llama.attention.head_count_kv", 8U); },
                {"llama.attention.head_count_kv", "does not divide"});
  check_refused([](GgufWriter& w) { w.set("llama.attention.head_count_kv", 0U); },
                {"llama.attention.head_count_kv", "is 0"});
  check_refused(
      [](GgufWriter& w) {
        w.set("llama.attention.head_count", 5U).set("llama.attention.head_count_kv", 5U);
      },
      {"width 32 is no multiple of the 5 heads"});
  check_refused([](GgufWriter& w) { w.set("llama.attention.key_length", 7U); }, {"7 dimensions"});
  check_refused([](GgufWriter& w) { w.set("llama.attention.key_length", 514U); },
                {"llama.attention.key_length", "514"});
  check_refused([](GgufWriter& w) { w.set("llama.attention.value_length", 16U); },
                {"llama.attention.value_length", "equal the key length 8"});
}

TEST_CASE("ModelConfig: a list of equal sizes for each layer counts, others are refused",
          "[runtime]") {
  check_taken([](GgufWriter& w) {
    w.set_numbers<std::uint32_t>("llama.attention.head_count_kv", GgufKind::kUint32, {2});
    w.set_numbers<std::int32_t>("llama.feed_forward_length", GgufKind::kInt32, {32, 32});
  });
  check_refused(
      [](GgufWriter& w) {
        w.set_numbers<std::uint32_t>("llama.attention.head_count_kv", GgufKind::kUint32, {2, 1});
      },
      {"llama.attention.head_count_kv", "layers of different sizes"});
  check_refused(
      [](GgufWriter& w) {
        w.set_numbers<std::int32_t>("llama.attention.head_count_kv", GgufKind::kInt32, {-2});
      },
      {"llama.attention.head_count_kv"});
  check_refused(
      [](GgufWriter& w) {
        w.set_numbers<std::uint32_t>("llama.block_count", GgufKind::kUint32, {});
      },
      {"llama.block_count"});
}

TEST_CASE("ModelConfig: keys that would change the results are refused by name", "[runtime]") {
  check_refused([](GgufWriter& w) { w.set("llama.expert_count", 8U); },
                {"llama.expert_count", "mixtures of experts"});
  check_refused([](GgufWriter& w) { w.set("llama.expert_used_count", 2U); },
                {"llama.expert_used_count"});
  check_refused([](GgufWriter& w) { w.set_bool("llama.attention.causal", false); },
                {"llama.attention.causal"});
  check_refused([](GgufWriter& w) { w.set_bool("llama.use_parallel_residual", true); },
                {"llama.use_parallel_residual"});
  for (const char* key : {"llama.logit_scale", "llama.attention.scale",
                          "llama.final_logit_softcapping", "llama.anything\n"}) {
    check_refused([&](GgufWriter& w) { w.set(key, 2.0F); }, {"is not known to this build"});
  }
}

TEST_CASE("ModelConfig: the same keys at values that change nothing are taken", "[runtime]") {
  check_taken([](GgufWriter& w) {
    w.set("llama.attention.sliding_window", 64U).set("llama.expert_count", 0U);
    w.set_bool("llama.attention.causal", true).set("llama.vocab_size", 10U);
    w.set_text("llama.tensor_data_layout", "Meta AI original pth");
    w.set("general.file_type", 3U).set_text("someone.else", "x").set("qwen2.logit_scale", 2U);
  });
}

TEST_CASE("ModelConfig: the vocabulary is the embedding's rows, and the tokenizer fits in",
          "[runtime]") {
  check_refused([](GgufWriter& w) { w.erase_tensor("token_embd.weight"); },
                {"\"token_embd.weight\" is missing"});
  check_refused([](GgufWriter& w) { w.tensor("token_embd.weight").dims = {320}; },
                {"\"token_embd.weight\" has to be a matrix"});
  check_refused([](GgufWriter& w) { w.set("llama.vocab_size", 11U); },
                {"llama.vocab_size", "is 11", "10 rows"});
  check_refused(
      [](GgufWriter& w) {
        w.set_texts("tokenizer.ggml.tokens", std::vector<std::string>(11, "a"));
      },
      {"tokenizer.ggml.tokens", "11 pieces", "10 rows"});
  check_taken([](GgufWriter& w) { w.set_texts("tokenizer.ggml.tokens", {"a", "b"}); });
}
