// `kvasir plan`: the table, the JSON of the REST route, a model file as source, and refusals that
// name options.
#include "cli/plan.h"

#include "cli/plan_report.h"
#include "cli/startup_error.h"
#include "server/kv_plan.h"
#include "server/kv_plan_json.h"
#include "tests/support/catch.h"
#include "tests/support/gguf_writer.h"

#include <nlohmann/json.hpp>

#include <sstream>
#include <string>

using namespace kvasir;
using namespace kvasir::cli;
using kvasir::server::PlanFields;

namespace {

const std::string kTinyModel = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/tiny/llama-gqa.gguf";

std::string output(const PlanFields& fields, bool json) {
  std::ostringstream out;
  run_plan(fields, json, out);
  return out.str();
}

std::string refusal(const PlanFields& fields) {
  std::ostringstream out;
  try {
    run_plan(fields, false, out);
  } catch (const StartupError& error) {
    CHECK(out.str().empty());
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

PlanFields llama() {
  PlanFields fields;
  fields.preset = "llama-2-7b";
  fields.context_tokens = 4096;
  fields.prompt_tokens = 4;
  fields.new_tokens = 6;
  return fields;
}

}  // namespace

TEST_CASE("plan: the table of a published model", "[cli]") {
  PlanFields fields = llama();
  fields.batch = 8;
  fields.budget_bytes = 24LL << 30U;
  CHECK(
      output(fields, false) ==
      R"(llama-2-7b of 32 layers, 32 query heads, 32 KV heads of 128 dimensions; elements of type f16

2 x 32 layers x 32 KV heads x 128 x 2 bytes = 524288 bytes a token
524288 bytes x 4096 tokens x 8 sequences = 17179869184 bytes

KV cache
  a token                      512 KiB       524288 bytes
  a sequence of 4096 tokens      2 GiB   2147483648 bytes
  8 sequences                   16 GiB  17179869184 bytes
  the weights                 12.6 GiB  13476831232 bytes
  8 sequences to the weights      1.27
  query heads to a KV head           1
  the budget                    24 GiB  25769803776 bytes
  sequences in it                   12
  (weights: 6738415616 published parameters x 2 bytes (f16))

As kvasir charges it, in blocks of 32 tokens
  a block                  16 MiB     16777216 bytes
  a sequence, 128 blocks    2 GiB   2147483648 bytes
  8 sequences              16 GiB  17179869184 bytes
  sequences in the budget      12

Work for a prompt of 4 tokens and 6 new
                                        with a cache  without  times
  token passes                                     9       39    4.3
  attention scores of a layer and head            45      155    3.4
)");
}

TEST_CASE("plan: layers with windows are listed, and their chunk is told", "[cli]") {
  PlanFields fields;
  fields.layers = 18;
  fields.kv_heads = 1;
  fields.head_dim = 256;
  fields.context_tokens = 32'768;
  fields.window_tokens = 512;
  fields.window_pattern = "5:1";
  const std::string text = output(fields, false);
  CHECK(contains(text, "A model of 18 layers, 1 query head, 1 KV head of 256 dimensions"));
  CHECK(contains(text, "the weights                 not known\n"));
  CHECK(contains(text, R"(
  layers  window  tokens kept  bytes a token  bytes a sequence  scores with a cache        without
  15         512          512          15360           7864320)"));
  CHECK(contains(text, "\n  3         none        32768           3072         100663296"));
  CHECK(contains(text, "with room for a chunk of 512 behind each window"));
  CHECK(contains(text, "of a layer and head, mean"));
  CHECK_FALSE(contains(output(llama(), false), "window"));
}

TEST_CASE("plan: JSON is one line, as REST answers", "[cli]") {
  const std::string line = output(llama(), true);
  CHECK(line == server::kv_plan_json(server::make_plan(llama(), {}).value()) + "\n");
  CHECK(nlohmann::json::parse(line)["bytes_per_token"] == 524'288);
}

TEST_CASE("plan: a model file gives shape, context and weights", "[cli]") {
  PlanFields fields;
  fields.model = kTinyModel;
  const auto plan = nlohmann::json::parse(output(fields, true));
  CHECK(plan["layers"] == 2);
  CHECK(plan["kv_heads"] == 2);
  CHECK(plan["head_dim"] == 16);
  CHECK(plan["bytes_per_token"] == 256);  // as inspect says
  CHECK(plan["weights_from"] == "tensors of the model file");
  CHECK(plan["weights_bytes"] > 100'000);
  CHECK(plan["grouping_ratio"].get<int>() * plan["kv_heads"].get<int>() == plan["query_heads"]);
  CHECK(plan["context_tokens"] > 0);
  CHECK(plan["budget_bytes"].is_null());
  fields.grouping = false;
  const auto ungrouped = nlohmann::json::parse(output(fields, true));
  CHECK(ungrouped["total_bytes"] ==
        plan["total_bytes"].get<std::uint64_t>() * plan["grouping_ratio"].get<std::uint64_t>());
}

TEST_CASE("plan: refusals name the option", "[cli]") {
  CHECK(contains(refusal({}), "--preset, --model, or --layers"));
  PlanFields fields = llama();
  fields.batch = 0;
  CHECK(refusal(fields) == "command line: --batch must be an integer from 1 to 1048576, not 0");
  fields = llama();
  fields.preset = "llama-4";
  CHECK(refusal(fields) ==
        "command line: --preset must be llama-2-7b, llama-2-70b, llama-3-8b, llama-3-70b or "
        "smollm2-135m, not \"llama-4\"");
  fields.preset = "kv_heads";  // what was typed stays
  CHECK(contains(refusal(fields), "not \"kv_heads\""));
  fields = llama();
  fields.kv_heads = 8;
  CHECK(refusal(fields) == "command line: --kv-heads must be absent beside --preset, not 8");
  fields = {};
  fields.model = kTinyModel;
  fields.layers = 8;
  CHECK(refusal(fields) == "command line: --layers must be absent beside --model, not 8");
  fields = {};
  fields.layers = 8;
  CHECK(contains(refusal(fields), "--kv-heads or --query-heads must be given for a model"));
  fields.kv_heads = 3;
  fields.query_heads = 8;
  fields.head_dim = 8;
  CHECK(refusal(fields) ==
        "command line: --query-heads must be a multiple of --kv-heads (3), not 8");
  fields = llama();
  fields.window_pattern = "5:1";
  CHECK(contains(refusal(fields), "--window-pattern must be absent unless --window-tokens is"));
  fields = llama();
  fields.context_tokens = 1 << 24U;
  fields.batch = 1 << 20U;
  CHECK(contains(refusal(fields), "command line: --batch must be such that"));
  fields = {};
  fields.model = "/nonexistent.gguf";
  CHECK(contains(refusal(fields), "command line: --model"));
  const test::MemoryFile no_model(
      "\x7f"
      "ELF and more");
  fields.model = no_model.path();
  CHECK(contains(refusal(fields), "command line: --model"));
}

namespace {

/// Metadata and one tensor: what a plan reads of a file with windows in five layers of six.
std::string windowed_model(std::uint32_t context_tokens) {
  test::GgufWriter writer;
  writer.set_text("general.architecture", "gemma3").set_text("general.name", "evil\x1b[2J");
  for (const auto& [name, value] : {std::pair{"block_count", 12U},
                                    {"context_length", context_tokens},
                                    {"embedding_length", 32U},
                                    {"feed_forward_length", 32U},
                                    {"attention.head_count", 4U},
                                    {"attention.sliding_window", 16U}}) {
    writer.set(std::string("gemma3.") + name, value);
  }
  writer.set("gemma3.attention.layer_norm_rms_epsilon", 1e-6F);
  writer.add_tensor(
      {"token_embd.weight", {32, 10}, 0, std::string(32 * 10 * 4, '\x01'), std::nullopt});
  return writer.bytes();
}

}  // namespace

TEST_CASE("plan: a file's windows and weights are counted", "[cli]") {
  const test::MemoryFile file(windowed_model(256));
  PlanFields fields;
  fields.model = file.path();
  const auto plan = nlohmann::json::parse(output(fields, true));
  // 2 x 12 layers x 4 KV heads x 8 x 2 bytes; at 256 tokens ten layers keep 16 of them.
  CHECK(plan["bytes_per_token"] == 1536);
  CHECK(plan["bytes_per_sequence"] == 128 * (2 * 256 + 10 * 16));
  CHECK(plan["weights_bytes"] == 32 * 10 * 4);
  CHECK(plan["groups"].size() == 2);
}

TEST_CASE("plan: a file whose numbers are beyond the calculator is refused", "[cli]") {
  PlanFields fields;
  const test::MemoryFile longest(windowed_model(1U << 24U));
  fields.model = longest.path();
  fields.context_tokens = 1024;
  CHECK_NOTHROW(output(fields, true));
  const test::MemoryFile longer(windowed_model((1U << 24U) + 1));
  fields.model = longer.path();
  CHECK(contains(refusal(fields),
                 "command line: --model: the file's model has 16777217 tokens of context"));
  test::GgufWriter writer;
  writer.set_text("general.architecture", "llama").set_text("general.name", "evil\x1b[2J");
  const test::MemoryFile broken(writer.bytes());
  fields.model = broken.path();
  const std::string said = refusal(fields);
  CHECK(contains(said, "command line: --model"));
  CHECK_FALSE(contains(said, "\x1b"));
}

TEST_CASE("plan: sizes have one decimal where they need it", "[cli]") {
  CHECK(binary_bytes_text(0) == "0 bytes");
  CHECK(binary_bytes_text(1) == "1 byte");
  CHECK(binary_bytes_text(1023) == "1023 bytes");
  CHECK(binary_bytes_text(1024) == "1 KiB");
  CHECK(binary_bytes_text(1536) == "1.5 KiB");
  CHECK(binary_bytes_text(1024 * 1024 - 1) == "1024.0 KiB");
  CHECK(binary_bytes_text(40ULL << 30U) == "40 GiB");
  CHECK(binary_bytes_text(13'476'831'232) == "12.6 GiB");
  CHECK(binary_bytes_text(1ULL << 53U) == "8 PiB");
}

TEST_CASE("plan: a budget takes units and refuses what would not fit", "[cli]") {
  CHECK(plan_bytes("0") == 0);
  CHECK(plan_bytes("123") == 123);
  CHECK(plan_bytes("8KiB") == 8192);
  CHECK(plan_bytes("3MiB") == 3LL << 20U);
  CHECK(plan_bytes("24GiB") == 24LL << 30U);
  CHECK(plan_bytes("8192TiB") == 1LL << 53U);
  for (const char* bad : {"", "GiB", "8GB", "-1", "1.5GiB", "8193TiB", "9007199254740993",
                          "99999999999999999999", "8 GiB", "0x10"}) {
    INFO(bad);
    CHECK_THROWS_AS(plan_bytes(bad), StartupError);
  }
}
