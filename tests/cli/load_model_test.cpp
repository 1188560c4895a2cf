// From GGUF keys to a vocabulary, and from options to an engine, with the refusals on the way.
#include "cli/load_model.h"

#include "cli/engine_stack.h"
#include "cli/startup_error.h"
#include "tests/support/catch.h"
#include "tests/support/gguf_writer.h"

#include <string>

using namespace kvasir;
using kvasir::test::GgufKind;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

const std::string kTinyModel = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/tiny/llama-gqa.gguf";

GgufWriter small_vocabulary() {
  GgufWriter writer;
  writer.set_text("tokenizer.ggml.model", "gpt2");
  writer.set_text("tokenizer.ggml.pre", "smollm");
  writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<end>"});
  writer.set_numbers<std::int32_t>("tokenizer.ggml.token_type", GgufKind::kInt32, {1, 1, 1, 3});
  writer.set_texts("tokenizer.ggml.merges", {"a b"});
  writer.set("tokenizer.ggml.eos_token_id", 3U);
  writer.set_bool("tokenizer.ggml.add_bos_token", false);
  writer.set_text("tokenizer.chat_template", "{{ messages }}");
  return writer;
}

Result<text::Vocabulary> read(const GgufWriter& writer) {
  const MemoryFile memory(writer.bytes());
  const auto file = runtime::GgufFile::open(memory.path());
  REQUIRE(file);
  return cli::read_vocabulary(**file);
}

void check_refused(const GgufWriter& writer, const std::string& key) {
  const auto vocabulary = read(writer);
  REQUIRE_FALSE(vocabulary);
  INFO(vocabulary.error().message);
  CHECK(vocabulary.error().code == ErrorCode::kInvalidModelFile);
  CHECK(vocabulary.error().message.find(key) != std::string::npos);
}

config::LoadedOptions tiny_options() {
  config::LoadedOptions loaded;
  config::ServeOptions& options = loaded.options;
  options.model_path = kTinyModel;
  options.kv_budget_bytes = 1U << 20U;
  options.threads = 1;
  options.max_sequences = 4;
  options.max_waiting = 4;
  options.step_tokens = 16;
  return loaded;
}

void check_start_refused(const config::LoadedOptions& loaded, const std::string& part) {
  try {
    (void)cli::build_engine_stack(loaded);
  } catch (const cli::StartupError& error) {
    INFO(error.what());
    CHECK(std::string(error.what()).find(part) != std::string::npos);
    return;
  }
  FAIL("no StartupError");
}

}  // namespace

TEST_CASE("read_vocabulary: every key becomes its field", "[cli]") {
  const auto vocabulary = read(small_vocabulary());
  REQUIRE(vocabulary);
  CHECK(vocabulary->model == "gpt2");
  CHECK(vocabulary->pre_tokenizer == "smollm");
  CHECK(vocabulary->tokens == std::vector<std::string>{"a", "b", "ab", "<end>"});
  CHECK(vocabulary->types[3] == text::TokenType::kControl);
  CHECK(vocabulary->merges == std::vector<std::string>{"a b"});
  CHECK(vocabulary->eos == 3U);
  CHECK_FALSE(vocabulary->bos);
  CHECK(vocabulary->add_bos == false);
  CHECK_FALSE(vocabulary->add_space_prefix);
  CHECK(vocabulary->chat_template == "{{ messages }}");
}

TEST_CASE("read_vocabulary: a missing, ill-typed or ill-sized key is refused by name", "[cli]") {
  check_refused(small_vocabulary().erase("tokenizer.ggml.model"), "tokenizer.ggml.model");
  check_refused(small_vocabulary().erase("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
  check_refused(small_vocabulary().set_text("tokenizer.ggml.tokens", "a"), "tokenizer.ggml.tokens");
  check_refused(small_vocabulary().set_texts("tokenizer.ggml.tokens", {}), "tokenizer.ggml.tokens");
  check_refused(small_vocabulary().set_texts("tokenizer.ggml.scores", {"1"}),
                "tokenizer.ggml.scores");
  check_refused(
      small_vocabulary().set_numbers<float>("tokenizer.ggml.scores", GgufKind::kFloat32, {1.0F}),
      "tokenizer.ggml.scores");
  check_refused(small_vocabulary().set_numbers<std::int32_t>("tokenizer.ggml.token_type",
                                                             GgufKind::kInt32, {1, 1, 1}),
                "tokenizer.ggml.token_type");
  for (const std::int32_t type : {0, 7, -1, 257}) {
    check_refused(small_vocabulary().set_numbers<std::int32_t>("tokenizer.ggml.token_type",
                                                               GgufKind::kInt32, {1, 1, 1, type}),
                  "tokenizer.ggml.token_type");
  }
  check_refused(small_vocabulary().set("tokenizer.ggml.eos_token_id", 4U),
                "tokenizer.ggml.eos_token_id");
  check_refused(small_vocabulary().set_text("tokenizer.ggml.bos_token_id", "0"),
                "tokenizer.ggml.bos_token_id");
}

TEST_CASE("build_engine_stack: a small model becomes an engine with whole blocks of its budget",
          "[cli]") {
  const auto stack = cli::build_engine_stack(tiny_options());
  CHECK(stack->num_blocks == (1U << 20U) / stack->geometry.bytes_per_block());
  CHECK(stack->threads.threads == 1);
  CHECK(stack->info.num_blocks == stack->num_blocks);
  CHECK(stack->info.kv_budget_bytes == 1U << 20U);
  CHECK(stack->engine->status().total_blocks == stack->num_blocks);
}

TEST_CASE("build_engine_stack: options that cannot hold together are refused with the numbers",
          "[cli]") {
  config::LoadedOptions loaded = tiny_options();
  loaded.options.kv_budget_bytes = 100;
  loaded.origins["kv-budget"] = "k.toml:7: kv_budget";
  check_start_refused(loaded, "k.toml:7: kv_budget: 100 bytes is less than one block");
  loaded = tiny_options();
  loaded.options.context_tokens = 1U << 24U;
  loaded.origins["context"] = "environment: KVASIR_CONTEXT";
  check_start_refused(loaded, "environment: KVASIR_CONTEXT: 16777216 is more than the model's");
  loaded = tiny_options();
  loaded.options.isa = "neon";
  loaded.origins["isa"] = "k.toml:2: isa";
  check_start_refused(loaded,
                      "k.toml:2: isa: neon is not there; allowed on this CPU: auto, scalar");
  loaded = tiny_options();
  loaded.options.kv_budget_bytes = 1ULL << 43U;
  loaded.origins["kv-budget"] = "command line: --kv-budget";
  check_start_refused(loaded, "KV arena 8192.00 GiB");
  check_start_refused(loaded, "kv-budget (command line: --kv-budget), max-sequences (default");
  loaded = tiny_options();
  loaded.options.served_model_name = ",";
  check_start_refused(loaded, "default of --served-model-name: no name between the commas");
  loaded = tiny_options();
  loaded.options.model_path = "/nonexistent.gguf";
  loaded.origins["model"] = "environment: KVASIR_MODEL";
  check_start_refused(loaded, "environment: KVASIR_MODEL: \"/nonexistent.gguf\" does not exist");
  loaded = tiny_options();
  loaded.options.model_path = KVASIR_SOURCE_DIR "/README.md";
  loaded.origins["model"] = "environment: KVASIR_MODEL";
  check_start_refused(loaded, "environment: KVASIR_MODEL: " KVASIR_SOURCE_DIR "/README.md");
  loaded = tiny_options();
  loaded.options.chat_template_path = "/nonexistent.jinja";
  loaded.origins["chat-template"] = "k.toml:1: chat_template";
  check_start_refused(loaded, "k.toml:1: chat_template: \"/nonexistent.jinja\" does not exist");
}

TEST_CASE("build_engine_stack: a budget of exactly one block starts", "[cli]") {
  config::LoadedOptions loaded = tiny_options();
  const std::uint64_t block = cli::build_engine_stack(loaded)->geometry.bytes_per_block();
  loaded.options.kv_budget_bytes = block;
  CHECK(cli::build_engine_stack(loaded)->num_blocks == 1);
  loaded.options.kv_budget_bytes = block - 1;
  check_start_refused(loaded, "is less than one block");
}
