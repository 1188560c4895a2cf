// What each block puts out, against the reference: finds the first wrong layer.
#include "runtime/kernels/dispatch.h"
#include "runtime/model/decoder.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/runtime/decoder/test_models.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

using namespace kvasir;
using namespace kvasir::runtime;
using namespace kvasir::runtime::test;
using Json = nlohmann::json;

namespace {

using Hidden = std::map<std::string, std::vector<std::vector<float>>>;  // stage to [token][width]

/// Every stage of one prompt in one chunk, and the logits of its last token.
Hidden compute_hidden(const TestModel& model, const std::vector<TokenId>& ids, Isa isa) {
  const auto num_tokens = static_cast<std::uint32_t>(ids.size());
  const auto geometry = model.config.kv_geometry(kvcache::KvType::kF32, 16);
  const std::uint32_t num_stripes = num_tokens / 16 + 1;
  kvcache::KvStorage storage(geometry, num_stripes * geometry.blocks_per_stripes());
  WorkerTeam team(2);
  DecoderLimits limits;
  limits.num_threads = 2;
  limits.max_step_tokens = num_tokens;
  limits.max_chunks = 1;
  limits.max_logits_rows = num_tokens;
  Decoder decoder(limits, model.config, model.weights, kernels_for(isa), storage, team);
  Hidden hidden;
  decoder.set_tap([&](std::string_view stage, std::uint32_t token, std::span<const float> values) {
    auto& rows = hidden[std::string(stage)];
    rows.resize(num_tokens);
    rows[token].assign(values.begin(), values.end());
  });
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < storage.num_blocks(); ++i) blocks.push_back(BlockId{i});
  Batch batch;
  BatchChunk chunk;
  chunk.num_tokens = num_tokens;
  chunk.tokens = ids;
  std::size_t first_block = 0;
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    const std::size_t count = std::size_t{num_stripes} * geometry.blocks_per_stripe(group);
    chunk.block_tables[group] = std::span<const BlockId>(blocks).subspan(first_block, count);
    first_block += count;
  }
  batch.chunks.push_back(chunk);
  batch.num_tokens = num_tokens;
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < num_tokens; ++i) all.push_back(i);
  decoder.forward(batch, all);
  decoder.head(0, num_tokens);
  const auto logits = decoder.logits(num_tokens - 1);
  hidden["logits of the last token"].emplace_back(logits.begin(), logits.end());
  return hidden;
}

/// Compares one token's recorded norm, first 8 and last 4 values. Errors are taken relative to the
/// largest of those values, not to the norm: in SmolLM2's middle layers one component holds nearly
/// all of the norm, and would hide the rest.
void check_token(const std::vector<float>& actual, const Json& expected, double tolerance) {
  double sum = 0.0;
  for (const float value : actual) sum += static_cast<double>(value) * static_cast<double>(value);
  const double norm = expected["norm"].get<double>();
  CHECK(std::abs(std::sqrt(sum) - norm) <= tolerance * norm);
  std::vector<double> values = expected["first8"].get<std::vector<double>>();
  for (const Json& value : expected["last4"]) values.push_back(value.get<double>());
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t place = i < 8 ? i : actual.size() - values.size() + i;
    CHECK(std::abs(static_cast<double>(actual[place]) - values[i]) <= tolerance * largest);
  }
}

void check_hidden(const TestModel& model, const std::string& golden, Isa isa,
                  std::size_t num_stages) {
  std::ifstream file(golden_path(golden));
  REQUIRE(file);
  std::string line;
  std::getline(file, line);
  const Hidden hidden =
      compute_hidden(model, Json::parse(line)["ids"].get<std::vector<TokenId>>(), isa);
  std::size_t compared = 0;
  while (std::getline(file, line)) {
    const Json row = Json::parse(line);
    std::string stage = row["at"].get<std::string>();
    stage = stage.substr(0, stage.find(" ("));
    INFO(golden << ", " << isa_name(isa) << ", " << stage);
    const auto found = hidden.find(stage);
    REQUIRE(found != hidden.end());
    REQUIRE(found->second.size() == row["tokens"].size());
    for (std::size_t t = 0; t < found->second.size(); ++t) {
      INFO("token " << t);
      check_token(found->second[t], row["tokens"][t], 1e-4);
    }
    ++compared;
  }
  CHECK(compared == num_stages);
}

}  // namespace

TEST_CASE("Decoder: every block of SmolLM2 puts out what the reference does",
          "[runtime][smollm2][golden]") {
  for (const Isa isa : compiled_isas()) {
    if (cpu_supports(isa)) check_hidden(smollm2(), "smollm2-hidden.jsonl", isa, 34);
  }
}

TEST_CASE("Decoder: every block of Gemma 3 puts out what the reference does",
          "[runtime][golden][gemma][slow]") {
  const auto model = gemma3();
  if (model == nullptr) {
    WARN("skipped: KVASIR_TEST_GEMMA names no file");
    return;
  }
  for (const Isa isa : compiled_isas()) {
    if (cpu_supports(isa)) check_hidden(*model, "gemma3-hidden.jsonl", isa, 22);
  }
}

TEST_CASE("Decoder: every block of stories260K puts out what the reference does",
          "[runtime][golden][stories]") {
  const char* folder = std::getenv("KVASIR_TEST_STORIES");
  if (folder == nullptr) {
    WARN("skipped: KVASIR_TEST_STORIES does not name the folder of the stories260K models");
    return;
  }
  const auto model = load_model(std::string(folder) + "/stories260K.gguf",
                                "87bbeaaf2e00b00500aba9d77bd0a5b8a45b90521703a9bd713d5584fd1ca905");
  for (const Isa isa : compiled_isas()) {
    if (cpu_supports(isa)) check_hidden(*model, "stories260k-hidden.jsonl", isa, 9);
  }
}
