// Rotary frequencies: plain and scaled ones against what transformers computes for the tiny models,
// and what is refused.
#include "runtime/model/rope_config.h"

#include "runtime/model/model_config.h"
#include "tests/runtime/model/small_model.h"
#include "tests/support/catch.h"
#include "tests/support/sha256.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

using namespace kvasir::runtime;
using kvasir::runtime::test::small_model;
using kvasir::runtime::test::verdict_on;
using kvasir::test::ByteWriter;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

const std::string kTinyFolder = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/tiny/";

// transformers computes the frequencies in float32: powers, logarithms and one product, each
// rounded to 2^-24.
constexpr double kTolerance = 4e-7;

nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in);
  return nlohmann::json::parse(in);
}

RopeConfig rope_of(const GgufWriter& writer) {
  const MemoryFile file(writer.bytes());
  const auto opened = GgufFile::open(file.path());
  REQUIRE(opened);
  const auto config = read_model_config(**opened);
  INFO((config ? "" : config.error().message));
  REQUIRE(config);
  return config->layer_kinds[0].rope;
}

void check_near(double value, double expected) {
  INFO(value << " and " << expected);
  CHECK(std::abs(value - expected) <= kTolerance * expected);
}

GgufWriter yarn_model() {
  GgufWriter writer = small_model();
  writer.set_text("llama.rope.scaling.type", "yarn").set("llama.rope.scaling.factor", 4.0F);
  return writer;
}

GgufWriter model_with_factors(const std::vector<float>& factors) {
  GgufWriter writer = small_model();
  ByteWriter data;
  for (const float factor : factors) data.number(factor);
  writer.add_tensor({"rope_freqs.weight", {factors.size()}, 0, data.bytes(), std::nullopt});
  return writer;
}

void check_refused(const GgufWriter& writer, const std::string& expected) {
  const std::string verdict = verdict_on(writer.bytes());
  INFO("verdict: " << verdict << ", expected: " << expected);
  CHECK(verdict.find(expected) != std::string::npos);
}

}  // namespace

TEST_CASE("RopeConfig: frequencies and magnitude of the tiny models are those of transformers",
          "[runtime][golden]") {
  const auto meta = read_json(kTinyFolder + "meta.json");
  REQUIRE(meta["models"].size() == 10);
  for (const auto& [name, about] : meta["models"].items()) {
    INFO(name);
    const std::string path = kTinyFolder + name;
    REQUIRE(kvasir::test::sha256_of_file(path) == about["sha256"].get<std::string>());
    const auto file = GgufFile::open(path);
    REQUIRE(file);
    const auto config = read_model_config(**file);
    REQUIRE(config);
    const auto golden = read_json(path.substr(0, path.size() - 5) + ".json")["rope"];
    const auto expected = golden["inverse_frequency"].get<std::vector<double>>();
    REQUIRE(config->layer_kinds[0].rope.inverse_frequency.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      check_near(config->layer_kinds[0].rope.inverse_frequency[i], expected[i]);
    }
    check_near(config->layer_kinds[0].rope.magnitude, golden["magnitude"].get<double>());
  }
}

TEST_CASE("RopeConfig: YaRN at the sizes of published models is that of transformers",
          "[runtime][golden]") {
  const auto cases = read_json(kTinyFolder + "yarn.json");
  REQUIRE(cases.size() == 2);
  for (const auto& golden : cases) {
    GgufWriter writer = yarn_model();
    writer.set("llama.attention.key_length", golden["dims"].get<std::uint32_t>());
    writer.set("llama.rope.freq_base", golden["base"].get<float>());
    writer.set("llama.rope.scaling.factor", golden["factor"].get<float>());
    writer.set("llama.rope.scaling.original_context_length",
               golden["original_tokens"].get<std::uint32_t>());
    const RopeConfig rope = rope_of(writer);
    const auto expected = golden["inverse_frequency"].get<std::vector<double>>();
    REQUIRE(rope.inverse_frequency.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      check_near(rope.inverse_frequency[i], expected[i]);
    }
    check_near(rope.magnitude, golden["magnitude"].get<double>());
  }
}

TEST_CASE("RopeConfig: a linear factor divides every frequency, under both of its names",
          "[runtime]") {
  const RopeConfig plain = rope_of(small_model());
  GgufWriter typed = small_model();
  typed.set_text("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", 8.0F);
  GgufWriter old = small_model();
  old.set("llama.rope.scale_linear", 8.0F);
  for (const GgufWriter& writer : {typed, old}) {
    const RopeConfig scaled = rope_of(writer);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(scaled.inverse_frequency[i] == plain.inverse_frequency[i] / 8.0);
    }
    CHECK(scaled.magnitude == 1.0F);
  }
}

TEST_CASE("RopeConfig: type none leaves a factor unused", "[runtime]") {
  GgufWriter writer = small_model();
  writer.set_text("llama.rope.scaling.type", "none").set("llama.rope.scaling.factor", 8.0F);
  CHECK(rope_of(writer).inverse_frequency == rope_of(small_model()).inverse_frequency);
}

TEST_CASE("RopeConfig: fewer rotated dimensions change the frequencies", "[runtime]") {
  GgufWriter writer = small_model();
  writer.set("llama.rope.dimension_count", 4U);
  const RopeConfig rope = rope_of(writer);
  CHECK(rope.dims == 4);
  REQUIRE(rope.inverse_frequency.size() == 2);
  CHECK(rope.inverse_frequency[1] == Approx(0.01).epsilon(1e-12));  // 10000^(-2/4)
}

TEST_CASE("RopeConfig: YaRN without an original context takes the model's", "[runtime]") {
  GgufWriter named = yarn_model();
  named.set("llama.rope.scaling.original_context_length", 64U);
  CHECK(rope_of(yarn_model()).inverse_frequency == rope_of(named).inverse_frequency);
  named.set("llama.rope.scaling.original_context_length", 4096U);
  CHECK(rope_of(yarn_model()).inverse_frequency != rope_of(named).inverse_frequency);
}

TEST_CASE("RopeConfig: YaRN's attention factors multiply the magnitude", "[runtime]") {
  const double own = 0.1 * std::log(4.0) + 1.0;
  check_near(rope_of(yarn_model()).magnitude, own);
  GgufWriter writer = yarn_model();
  writer.set("llama.rope.scaling.attn_factor", 0.5F);
  check_near(rope_of(writer).magnitude, 0.5 * own);
}

TEST_CASE("RopeConfig: YaRN's betas move the ramp", "[runtime]") {
  GgufWriter original = yarn_model();
  original.set("llama.rope.scaling.original_context_length", 4096U);
  GgufWriter fast = original;
  fast.set("llama.rope.scaling.yarn_beta_fast", 4.0F);
  GgufWriter slow = original;
  slow.set("llama.rope.scaling.yarn_beta_slow", 8.0F);
  CHECK(rope_of(fast).inverse_frequency != rope_of(original).inverse_frequency);
  CHECK(rope_of(slow).inverse_frequency != rope_of(original).inverse_frequency);
}

TEST_CASE("RopeConfig: stored factors divide the frequencies", "[runtime]") {
  const RopeConfig plain = rope_of(small_model());
  const RopeConfig rope = rope_of(model_with_factors({1.0F, 2.0F, 4.0F, 8.0F}));
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(rope.inverse_frequency[i] ==
          plain.inverse_frequency[i] / std::pow(2.0, static_cast<double>(i)));
  }
}

TEST_CASE("RopeConfig: settings that cannot be computed are refused by name", "[runtime]") {
  const auto with = [](GgufWriter writer, const std::string& name, float value) {
    writer.set("llama.rope." + name, value);
    return writer;
  };
  GgufWriter longrope = small_model();
  longrope.set_text("llama.rope.scaling.type", "longrope");
  check_refused(longrope, "\"llama.rope.scaling.type\" is \"longrope\"");
  check_refused(with(small_model(), "freq_base", 0.0F), "\"llama.rope.freq_base\" is 0");
  check_refused(with(small_model(), "freq_base", 1.0F), "\"llama.rope.freq_base\" is 1");
  check_refused(with(small_model(), "freq_base", INFINITY), "not finite");
  check_refused(with(yarn_model(), "scaling.factor", 0.0F), "\"llama.rope.scaling.factor\" is 0");
  check_refused(with(yarn_model(), "scaling.yarn_ext_factor", 0.5F), "yarn_ext_factor");
  check_refused(with(yarn_model(), "scaling.yarn_beta_fast", 0.5F), "yarn_beta_fast");
  check_refused(with(small_model(), "scaling.attn_factor", 2.0F),
                "\"llama.rope.scaling.attn_factor\"");
  GgufWriter odd = small_model();
  odd.set("llama.rope.dimension_count", 5U);
  check_refused(odd, "\"llama.rope.dimension_count\" is 5");
  odd.set("llama.rope.dimension_count", 10U);
  check_refused(odd, "\"llama.rope.dimension_count\" is 10, 1 to 8");
}

TEST_CASE("RopeConfig: stored factors of another shape or value are refused", "[runtime]") {
  check_refused(model_with_factors({1.0F, 2.0F, 3.0F}), "\"rope_freqs.weight\" has to be F32 [4]");
  check_refused(model_with_factors({1.0F, 0.0F, 1.0F, 1.0F}), "factors have to be above 0");
  check_refused(model_with_factors({1.0F, 1.0F, NAN, 1.0F}), "factors have to be above 0");
  check_refused(model_with_factors({INFINITY, 1.0F, 1.0F, 1.0F}), "factors have to be above 0");
  GgufWriter both = model_with_factors({1.0F, 2.0F, 4.0F, 8.0F});
  both.set_text("llama.rope.scaling.type", "yarn");
  check_refused(both, "also has rope_freqs.weight");
}
