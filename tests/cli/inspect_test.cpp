// `kvasir inspect`: what it says of a good model, of one that cannot be served, and of a file that
// is none.
#include "cli/inspect.h"

#include "tests/support/catch.h"
#include "tests/support/gguf_writer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <string>

using kvasir::cli::run_inspect;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

const std::string kTinyModel = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/tiny/llama-gqa.gguf";

struct Run {
  int exit_code = 0;
  std::string out;
  std::string errors;
};

Run inspect(const std::string& path, bool json) {
  std::ostringstream out;
  std::ostringstream errors;
  const int exit_code = run_inspect(path, json, out, errors);
  return {exit_code, out.str(), errors.str()};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Newlines aside.
bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto value = static_cast<unsigned char>(c);
    return (value < 0x20 && c != '\n') || value == 0x7f;
  });
}

}  // namespace

TEST_CASE("inspect: the text spells out the KV bytes of a token", "[cli]") {
  const Run run = inspect(kTinyModel, false);
  CHECK(run.exit_code == 0);
  CHECK(run.errors.empty());
  CHECK(contains(run.out, "This build can serve the model"));
  CHECK(contains(run.out,
                 "f16: 2 (K and V) x 2 layers x 2 KV heads x 16 dimensions x 2 bytes = 256 bytes "
                 "per token, 4194304 tokens per GiB"));
  CHECK(contains(run.out, "blk.0.attn_k.weight [32, 64] F16 4096 bytes"));
  CHECK(contains(run.out, "tokenizer.ggml.tokens = 271 x [\"<|end_of_text|>\""));
}

TEST_CASE("inspect: layers with a window are told from the others", "[cli]") {
  GgufWriter writer;
  writer.set_text("general.architecture", "gemma3");
  for (const auto& [name, value] : {std::pair{"block_count", 12U},
                                    {"context_length", 256U},
                                    {"embedding_length", 32U},
                                    {"feed_forward_length", 32U},
                                    {"attention.head_count", 4U},
                                    {"attention.sliding_window", 16U}}) {
    writer.set(std::string("gemma3.") + name, value);
  }
  writer.set("gemma3.attention.layer_norm_rms_epsilon", 1e-6F);
  writer.add_tensor(
      {"token_embd.weight", {32, 10}, 0, std::string(32 * 10 * 4, '\x01'), std::nullopt});
  const MemoryFile file(writer.bytes());
  const Run run = inspect(file.path(), false);
  CHECK(contains(run.out, "2 layers keep all tokens"));
  CHECK(contains(run.out, "10 layers keep a window of 16 tokens"));
  const auto groups =
      nlohmann::json::parse(inspect(file.path(), true).out)["model"]["layer_groups"];
  REQUIRE(groups.size() == 2);
  CHECK(groups[0] == nlohmann::json{{"layers", 2}, {"window_tokens", 0}});
  CHECK(groups[1] == nlohmann::json{{"layers", 10}, {"window_tokens", 16}});
  CHECK_FALSE(contains(inspect(kTinyModel, false).out, "layers keep"));
}

TEST_CASE("inspect: JSON has the same numbers", "[cli]") {
  const Run run = inspect(kTinyModel, true);
  CHECK(run.exit_code == 0);
  const auto json = nlohmann::json::parse(run.out);
  CHECK(json["support"]["can_be_served"] == true);
  CHECK(json["kv"]["f32"]["bytes_per_token"] == 512);
  CHECK(json["kv"]["bf16"]["tokens_per_gib"] == 4194304);
  CHECK(json["model"]["kv_heads"] == 2);
  CHECK(json["metadata"]["tokenizer.ggml.tokens"]["length"] == 271);
  CHECK(json["tensors"][0]["shape"].size() == 2);
}

TEST_CASE("inspect: a model that this build cannot serve is still described, with the reason",
          "[cli]") {
  GgufWriter writer;
  writer.set_text("general.architecture", "mamba").set_text("evil\x1b[2J", "a\x1b\nb\x7f\xff");
  const MemoryFile file(writer.bytes());
  const Run text = inspect(file.path(), false);
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, "This build cannot serve the model"));
  CHECK(contains(text.out, "\"mamba\""));
  CHECK(contains(text.out, "evil\\x1b[2J = \"a\\x1b\\nb\\x7f\\xff\""));
  CHECK_FALSE(has_control_characters(text.out));

  const Run as_json = inspect(file.path(), true);
  CHECK(as_json.exit_code == 0);
  CHECK_FALSE(has_control_characters(as_json.out));
  const auto json = nlohmann::json::parse(as_json.out);
  CHECK(json["support"]["can_be_served"] == false);
  CHECK(contains(json["support"]["parts"]["forward pass"]["why_not"], "mamba"));
  CHECK_FALSE(json.contains("kv"));
}

TEST_CASE("inspect: a file that is no GGUF gives one line of error and exit code 2", "[cli]") {
  const MemoryFile file(
      "\x7f"
      "ELF and more");
  for (const bool json : {false, true}) {
    const Run run = inspect(file.path(), json);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(std::count(run.errors.begin(), run.errors.end(), '\n') == 1);
    CHECK_FALSE(has_control_characters(run.errors));
  }
}
