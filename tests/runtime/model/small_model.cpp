#include "tests/runtime/model/small_model.h"

#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"

namespace kvasir::runtime::test {
namespace {

constexpr std::uint32_t kWidth = 32;
constexpr std::uint32_t kKvWidth = 16;
constexpr std::uint32_t kFfnWidth = 32;
constexpr std::uint32_t kVocab = 10;
constexpr std::uint32_t kQ8BlockBytes = 34;

void add_floats(kvasir::test::GgufWriter& writer, const std::string& name,
                std::vector<std::uint64_t> dims) {
  std::uint64_t count = 1;
  for (const std::uint64_t dim : dims) count *= dim;
  writer.add_tensor({name, std::move(dims), 0, float_data(count), std::nullopt});
}

void add_tensors(kvasir::test::GgufWriter& writer) {
  add_floats(writer, "token_embd.weight", {kWidth, kVocab});
  add_floats(writer, "blk.0.attn_norm.weight", {kWidth});
  add_floats(writer, "blk.0.attn_q.weight", {kWidth, kWidth});
  add_floats(writer, "blk.0.attn_k.weight", {kWidth, kKvWidth});
  add_floats(writer, "blk.0.attn_v.weight", {kWidth, kKvWidth});
  add_floats(writer, "blk.0.attn_output.weight", {kWidth, kWidth});
  add_floats(writer, "blk.0.ffn_norm.weight", {kWidth});
  add_floats(writer, "blk.0.ffn_gate.weight", {kWidth, kFfnWidth});
  add_floats(writer, "blk.0.ffn_up.weight", {kWidth, kFfnWidth});
  writer.add_tensor({"blk.0.ffn_down.weight",
                     {kFfnWidth, kWidth},
                     8,
                     std::string(std::size_t{kWidth} * kQ8BlockBytes, '\x01'),
                     std::nullopt});
  add_floats(writer, "output_norm.weight", {kWidth});
}

}  // namespace

std::string float_data(std::uint64_t count) {
  kvasir::test::ByteWriter bytes;
  for (std::uint64_t i = 0; i < count; ++i) bytes.number(0.5F);
  return bytes.bytes();
}

kvasir::test::GgufWriter small_model(const std::string& architecture) {
  kvasir::test::GgufWriter writer;
  writer.set_text("general.architecture", architecture);
  writer.set_text("general.name", "small");
  writer.set(architecture + ".block_count", 1U);
  writer.set(architecture + ".context_length", 64U);
  writer.set(architecture + ".embedding_length", kWidth);
  writer.set(architecture + ".feed_forward_length", kFfnWidth);
  writer.set(architecture + ".attention.head_count", 4U);
  writer.set(architecture + ".attention.head_count_kv", 2U);
  writer.set(architecture + ".attention.layer_norm_rms_epsilon", 1e-5F);
  writer.set(architecture + ".rope.freq_base", 10000.0F);
  writer.set_text("tokenizer.ggml.model", "gpt2");
  writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"});
  add_tensors(writer);
  return writer;
}

std::string verdict_on(const std::string& bytes) {
  const kvasir::test::MemoryFile file(bytes);
  const auto opened = GgufFile::open(file.path());
  if (!opened) return opened.error().message;
  const auto config = read_model_config(**opened);
  if (!config) return config.error().message;
  const auto weights = read_weights(**opened, *config);
  return weights ? "" : weights.error().message;
}

}  // namespace kvasir::runtime::test
