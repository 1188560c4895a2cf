// Models for the decoder's tests: GGUF files whose checksum is known, and tiny seeded models that
// are made in memory, so that the bit-identity tests depend on no file.
#pragma once

#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvasir::runtime::test {

struct TestModel {
  ModelConfig config;
  ModelWeights weights;
  std::unique_ptr<GgufFile> file;              // what the weights point into, for models from files
  std::vector<std::vector<float>> matrices;    // and for models in memory
  std::vector<std::vector<std::byte>> blocks;  // the same, quantised
};

/// Throws std::runtime_error when the file is missing, is not the one expected, or cannot be read.
/// An empty checksum is not compared.
std::unique_ptr<TestModel> load_model(const std::string& path, const std::string& sha256);

/// SmolLM2-135M-Instruct Q4_1 from KVASIR_TEST_MODEL, or from where deploy/serve.sh keeps it.
/// Loaded once.
const TestModel& smollm2();

/// Gemma 3 270M Q4_K_M from KVASIR_TEST_GEMMA; null where that names no file. Loaded once.
const TestModel* gemma3();
/// The same, loaded anew.
std::unique_ptr<TestModel> load_gemma3();

struct TinyShape {
  ModelFamily family = ModelFamily::kLlama;
  std::uint32_t num_heads = 4;
  std::uint32_t num_kv_heads = 2;
  std::uint32_t head_dim = 16;
  std::uint32_t width = 48;
  std::uint32_t ffn_width = 88;
  std::uint32_t num_layers = 2;
  std::uint32_t vocab_size = 97;
  std::uint32_t window_tokens = 0;      // of the layers that have a window; 0: none does
  std::uint32_t full_layer_period = 0;  // every so manieth layer has none; 0: all have it
};
/// Seeded random float32 weights; qwen2 has biases and rotates halves, llama adjacent pairs.
std::unique_ptr<TestModel> make_tiny_model(const TinyShape& shape, std::uint64_t seed);

/// A tiny model whose matrices are quantised where their width allows it (Q4_0, Q4_1 and Q8_0 in
/// turn, the head Q8_0) and packed, so that int8 kernels compute it.
std::unique_ptr<TestModel> make_tiny_int8_model(const TinyShape& shape, std::uint64_t seed);
/// The same model, its weights packed for int8 activations.
std::unique_ptr<TestModel> packed_model(const TestModel& model);
/// smollm2() packed. Loaded once.
const TestModel& smollm2_int8();

/// tests/golden/logits/NAME.
std::string golden_path(const std::string& name);

}  // namespace kvasir::runtime::test
