// Ten tiny models of seeded noise against the logits of transformers (tests/golden/tiny): MHA, GQA
// and MQA, llama and qwen2, biases, tied and separate heads, four kinds of rope, on every
// instruction set.
#include "runtime/kernels/dispatch.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/runtime/decoder/test_models.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::test;
using nlohmann::json;

namespace {

const char* const kModels[] = {
    "llama-mha", "llama-gqa",         "llama-mqa",       "qwen2-mha",         "qwen2-gqa",
    "qwen2-mqa", "llama-rope-linear", "llama-rope-yarn", "llama-rope-llama3", "qwen2-rope-yarn"};

std::string tiny_path(const std::string& name) {
  return std::string(KVASIR_SOURCE_DIR) + "/tests/golden/tiny/" + name;
}

json read_json(const std::string& name) {
  std::ifstream file(tiny_path(name));
  REQUIRE(file);
  return json::parse(file);
}

/// Two layers of four products one after another, and the head; each sums at most 96 terms, and
/// each of those adds at most 2^-24 of what is summed. Relative to the largest logit.
double f32_tolerance(double largest_logit) { return 9.0 * 96.0 * 0x1.0p-24 * largest_logit; }
/// A 16-bit cache rounds K and V by 2^-11; the file's README allows this much in a logit.
constexpr double kF16Tolerance = 0.06;

/// All ids at once, every position's logits compared where recorded.
void check_logits(const TestModel& model, const json& golden, const RunOptions& options) {
  const auto ids = golden["ids"].get<std::vector<TokenId>>();
  const auto num_tokens = static_cast<std::uint32_t>(ids.size());
  SequenceRunner runner(model, options);
  TestSequence sequence =
      make_sequence(greedy_request(ids), runner.blocks(num_tokens + 1, 5, 3), true);
  const ChunkOrder order{&sequence, num_tokens};
  runner.step({&order, 1});
  double worst = 0.0;
  double largest = 0.0;
  for (std::size_t i = 0; i < golden["positions"].size(); ++i) {
    const std::vector<float>& actual =
        sequence.logits.at(golden["positions"][i].get<std::size_t>());
    const auto expected = golden["logits"][i].get<std::vector<double>>();
    REQUIRE(actual.size() == expected.size());
    for (std::size_t id = 0; id < expected.size(); ++id) {
      const double difference = std::abs(static_cast<double>(actual[id]) - expected[id]);
      worst = std::isnan(difference) ? 1e9 : std::max(worst, difference);
      largest = std::max(largest, std::abs(expected[id]));
    }
  }
  CHECK(worst <=
        (options.kv_type == kvcache::KvType::kF32 ? f32_tolerance(largest) : kF16Tolerance));
}

/// The margins of the continuation are all above 0.12, so that neither cache type may change a
/// token.
void check_greedy(const TestModel& model, const json& golden, const RunOptions& options) {
  const auto ids = golden["ids"].get<std::vector<TokenId>>();
  const auto num_prompt = golden["num_prompt"].get<std::ptrdiff_t>();
  SequenceRunner runner(model, options);
  TestSequence sequence =
      make_sequence(greedy_request({ids.begin(), ids.begin() + num_prompt}),
                    runner.blocks(static_cast<std::uint32_t>(ids.size()) + 1, 60, 63), false);
  runner.run_alone(sequence, 7,
                   static_cast<std::uint32_t>(ids.size()) - static_cast<std::uint32_t>(num_prompt));
  CHECK(sequence.tokens == ids);
}

}  // namespace

TEST_CASE("Decoder: tiny models of every kind match transformers on every instruction set",
          "[runtime][golden]") {
  const json meta = read_json("meta.json");
  REQUIRE(meta["models"].size() == std::size(kModels));
  for (const std::string name : kModels) {
    const std::string file = name + ".gguf";
    const auto model =
        load_model(tiny_path(file), meta["models"][file]["sha256"].get<std::string>());
    const json golden = read_json(name + ".json");
    for (const Isa isa : compiled_isas()) {
      if (!cpu_supports(isa)) continue;
      for (const kvcache::KvType type : {kvcache::KvType::kF32, kvcache::KvType::kF16}) {
        INFO(name << ", " << isa_name(isa) << ", " << kvcache::kv_type_name(type));
        RunOptions options;
        options.isa = isa;
        options.kv_type = type;
        options.num_threads = 2;
        check_logits(*model, golden, options);
        check_greedy(*model, golden, options);
      }
    }
  }
}
