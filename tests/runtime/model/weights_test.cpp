// Tensors by name, shape and type, and the hash that keeps models apart.
#include "runtime/model/weights.h"

#include "tests/runtime/model/small_model.h"
#include "tests/support/catch.h"

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

using namespace kvasir::runtime;
using kvasir::runtime::test::float_data;
using kvasir::runtime::test::small_model;
using kvasir::runtime::test::verdict_on;
using kvasir::test::ByteWriter;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

struct OpenModel {
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  ModelWeights weights;
};

OpenModel open_model(const GgufWriter& writer) {
  OpenModel model;
  const MemoryFile bytes(writer.bytes());
  auto file = GgufFile::open(bytes.path());
  REQUIRE(file);
  model.file = std::move(*file);
  const auto config = read_model_config(*model.file);
  REQUIRE(config);
  model.config = *config;
  auto weights = read_weights(*model.file, model.config);
  INFO((weights ? "" : weights.error().message));
  REQUIRE(weights);
  model.weights = std::move(*weights);
  return model;
}

std::uint64_t hash_of(const GgufWriter& writer) {
  const OpenModel model = open_model(writer);
  const std::uint64_t hash = model_hash(*model.file, model.config, 1);
  for (const std::uint32_t num_threads : {2U, 3U}) {
    REQUIRE(model_hash(*model.file, model.config, num_threads) == hash);
  }
  return hash;
}

void check_refused(const std::function<void(GgufWriter&)>& change, const std::string& expected) {
  GgufWriter writer = small_model();
  change(writer);
  const std::string verdict = verdict_on(writer.bytes());
  INFO("verdict: " << verdict << ", expected: " << expected);
  CHECK(verdict.find(expected) != std::string::npos);
}

void add_bias(GgufWriter& writer, const std::string& name, std::uint64_t size) {
  writer.add_tensor({name, {size}, 0, float_data(size), std::nullopt});
}

}  // namespace

TEST_CASE("ModelWeights: matrices are views with their row bytes, vectors are copies",
          "[runtime]") {
  const OpenModel model = open_model(small_model());
  const ModelWeights& weights = model.weights;
  CHECK(weights.token_embedding.rows == 10);
  CHECK(weights.token_embedding.cols == 32);
  CHECK(weights.token_embedding.row_bytes == 128);
  REQUIRE(weights.layers.size() == 1);
  CHECK(weights.layers[0].key.rows == 16);
  CHECK(weights.layers[0].ffn_down.type == GgmlType::kQ8_0);
  CHECK(weights.layers[0].ffn_down.row_bytes == 34);
  CHECK(weights.layers[0].ffn_down.data ==
        model.file->find_tensor("blk.0.ffn_down.weight")->data.data());
  CHECK(weights.output_norm == std::vector<float>(32, 0.5F));
  CHECK(weights.layers[0].query_bias.empty());
}

TEST_CASE("ModelWeights: without output.weight the head is the embedding", "[runtime]") {
  const OpenModel tied = open_model(small_model());
  CHECK(tied.weights.output_head.data == tied.weights.token_embedding.data);
  GgufWriter writer = small_model();
  writer.add_tensor({"output.weight", {32, 10}, 0, float_data(320), std::nullopt});
  const OpenModel separate = open_model(writer);
  CHECK(separate.weights.output_head.data != separate.weights.token_embedding.data);
  CHECK(separate.weights.output_head.rows == 10);
}

TEST_CASE("ModelWeights: biases are optional in both families", "[runtime]") {
  const std::string architecture = GENERATE("llama", "qwen2");
  GgufWriter writer = small_model(architecture);
  add_bias(writer, "blk.0.attn_q.bias", 32);
  add_bias(writer, "blk.0.attn_k.bias", 16);
  add_bias(writer, "blk.0.attn_v.bias", 16);
  add_bias(writer, "blk.0.attn_output.bias", 32);
  const OpenModel model = open_model(writer);
  CHECK(model.weights.layers[0].query_bias.size() == 32);
  CHECK(model.weights.layers[0].key_bias.size() == 16);
  CHECK(model.weights.layers[0].value_bias.size() == 16);
  CHECK(model.weights.layers[0].attention_output_bias.size() == 32);
}

TEST_CASE("ModelWeights: queries may be wider than the model", "[runtime]") {
  GgufWriter writer = small_model();
  writer.set("llama.attention.key_length", 16U);
  const auto reshape = [&](const std::string& name, std::vector<std::uint64_t> dims) {
    writer.tensor(name).data = float_data(dims[0] * dims[1]);
    writer.tensor(name).dims = std::move(dims);
  };
  reshape("blk.0.attn_q.weight", {32, 64});
  reshape("blk.0.attn_k.weight", {32, 32});
  reshape("blk.0.attn_v.weight", {32, 32});
  reshape("blk.0.attn_output.weight", {64, 32});
  const OpenModel model = open_model(writer);
  CHECK(model.weights.layers[0].query.rows == 64);
  CHECK(model.weights.layers[0].attention_output.cols == 64);
}

TEST_CASE("ModelWeights: each tensor is needed", "[runtime]") {
  for (const std::string name :
       {"blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight",
        "blk.0.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_norm.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight",
        "output_norm.weight"}) {
    check_refused([&](GgufWriter& w) { w.erase_tensor(name); },
                  "tensor \"" + name + "\" is missing");
  }
  check_refused([](GgufWriter& w) { w.set("llama.block_count", 2U); },
                "tensor \"blk.1.attn_norm.weight\" is missing");
}

TEST_CASE("ModelWeights: other shapes and types are refused with both shapes", "[runtime]") {
  check_refused(
      [](GgufWriter& w) {
        w.tensor("blk.0.attn_k.weight").dims = {16, 32};
      },
      "\"blk.0.attn_k.weight\" is F32 [32, 16], expected rows, columns 16, 32");
  check_refused(
      [](GgufWriter& w) {
        w.tensor("blk.0.attn_q.weight").dims = {32, 16, 2};
      },
      "\"blk.0.attn_q.weight\" is F32 [2, 16, 32], expected rows, columns 32, 32");
  check_refused(
      [](GgufWriter& w) {
        w.tensor("output_norm.weight").dims = {32, 1};
      },
      "\"output_norm.weight\" is F32 [1, 32], expected F32 of size 32");
  check_refused(
      [](GgufWriter& w) {
        w.tensor("output_norm.weight").type = 1;
        w.tensor("output_norm.weight").data.resize(64);
      },
      "\"output_norm.weight\" is F16 [32], expected F32 of size 32");
  check_refused([](GgufWriter& w) { add_bias(w, "blk.0.attn_q.bias", 16); },
                "\"blk.0.attn_q.bias\" is F32 [16], expected F32 of size 32");
  check_refused(
      [](GgufWriter& w) {
        w.add_tensor({"output.weight", {32, 9}, 0, float_data(288), std::nullopt});
      },
      "\"output.weight\" is F32 [9, 32], expected rows, columns 10, 32");
}

TEST_CASE("ModelWeights: norms and biases that are not finite are refused", "[runtime]") {
  check_refused(
      [](GgufWriter& w) {
        w.tensor("output_norm.weight").data.replace(124, 4, ByteWriter().number(NAN).bytes());
      },
      "\"output_norm.weight\" has a value that is not finite");
}

TEST_CASE("ModelWeights: tensors that are not used are refused by name", "[runtime]") {
  for (const std::string name : {"blk.0.attn_q_norm.weight", "blk.1.attn_norm.weight",
                                 "output.bias", "blk.0.ffn_gate.bias", "evil\x1b"}) {
    check_refused([&](GgufWriter& w) { add_bias(w, name, 32); },
                  name == "evil\x1b" ? "tensor \"evil\\x1b\" is not used"
                                     : "tensor \"" + name + "\" is not used");
  }
}

TEST_CASE("model_hash: equal files have one hash, any change that matters another", "[runtime]") {
  std::set<std::uint64_t> hashes{hash_of(small_model())};
  CHECK(hash_of(small_model()) == *hashes.begin());
  GgufWriter renamed = small_model();
  renamed.set_text("general.name", "other");
  CHECK(hash_of(renamed) == *hashes.begin());

  std::vector<GgufWriter> others;
  others.push_back(small_model("qwen2"));
  others.push_back(small_model());
  others.back().set("llama.rope.freq_base", 20000.0F);
  others.push_back(small_model());
  others.back().set("llama.attention.layer_norm_rms_epsilon", 1e-6F);
  for (const std::size_t at : {0U, 31U, 500U, 1087U}) {  // first, a lane, the middle, last
    others.push_back(small_model());
    char& byte = others.back().tensor("blk.0.ffn_down.weight").data[at];
    byte = static_cast<char>(byte ^ 1);
  }
  others.push_back(small_model());  // the same bytes under exchanged names
  std::swap(others.back().tensor("blk.0.ffn_gate.weight").name,
            others.back().tensor("blk.0.ffn_up.weight").name);
  for (const GgufWriter& other : others) hashes.insert(hash_of(other));
  CHECK(hashes.size() == 1 + others.size());
}
