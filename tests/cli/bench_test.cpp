// What `kvasir bench` runs and how it counts: workloads by name, the steps that an executor is
// given, the bound of known shapes, and the JSON that scripts read. No figure is judged here.
#include "bench/roofline/roofline.h"
#include "cli/bench_bound.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/bench_workload.h"
#include "cli/startup_error.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/model/pack_weights.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace kvasir;
using namespace kvasir::cli;
using Json = nlohmann::json;
using runtime::Activations;

namespace {

// --- workloads --------------------------------------------------------------------------------

std::vector<Workload> parsed(const std::string& names, std::uint32_t prompt_tokens = 0) {
  return parse_workloads({.names = names, .prompt_tokens = prompt_tokens, .new_tokens = 128});
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const StartupError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Workload prefill(std::uint32_t prompt) {
  return {.kind = WorkloadKind::kPrefill, .sequences = 1, .prompt_tokens = prompt};
}
Workload decode(std::uint32_t sequences, std::uint32_t prompt, std::uint32_t new_tokens) {
  return {.kind = WorkloadKind::kDecode,
          .sequences = sequences,
          .prompt_tokens = prompt,
          .new_tokens = new_tokens};
}
Workload mixed(std::uint32_t sequences, std::uint32_t prompt, std::uint32_t arriving) {
  return {.kind = WorkloadKind::kMixed,
          .sequences = sequences,
          .prompt_tokens = prompt,
          .arriving_prompt_tokens = arriving};
}

// --- running ----------------------------------------------------------------------------------

constexpr std::uint32_t kVocabulary = 50;
constexpr std::uint32_t kBlockTokens = 16;

kvcache::KvGeometry small_geometry() {
  kvcache::KvGeometry geometry;
  geometry.groups = {{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16}};
  geometry.block_tokens = kBlockTokens;
  return geometry;
}

/// Takes one millisecond for a step and one more for each token, and keeps what it was given.
class RecordingExecutor final : public runtime::Executor {
 public:
  explicit RecordingExecutor(VirtualClock& clock) : clock_(clock) {}

  struct Chunk {
    std::uint64_t sequence = 0;
    std::uint32_t first_position = 0, num_tokens = 0;
    bool samples = false;
    friend bool operator==(const Chunk&, const Chunk&) = default;
  };

  [[nodiscard]] bool same_slots(BlockId, BlockId, std::uint32_t) const override { return true; }
  Result<StepResult> execute(const runtime::Batch& batch) override {
    StepResult result;
    std::vector<Chunk> step;
    for (const runtime::BatchChunk& chunk : batch.chunks) {
      check_chunk(chunk);
      const bool samples = chunk.first_logits_row < chunk.num_tokens;
      step.push_back({value_of(chunk.sequence), chunk.first_position, chunk.num_tokens, samples});
      if (!samples) continue;
      SampledToken sampled;
      sampled.sequence = chunk.sequence;
      sampled.token = 7;
      result.sampled.push_back(sampled);
    }
    clock_.advance(std::chrono::milliseconds(1 + batch.num_tokens));
    steps.push_back(step);
    return result;
  }

  std::vector<std::vector<Chunk>> steps;
  std::map<std::uint32_t, std::uint64_t> blocks;  // that tokens were written to, and by whom

 private:
  void check_chunk(const runtime::BatchChunk& chunk) {
    const std::uint32_t end = chunk.first_position + chunk.num_tokens;
    REQUIRE(end <= chunk.tokens.size());
    REQUIRE(chunk.request != nullptr);
    CHECK(chunk.request->sampling.temperature == 0.0F);
    CHECK(chunk.num_prompt_tokens == chunk.request->prompt_tokens.size());
    for (std::uint32_t position = chunk.first_position; position < end; ++position) {
      REQUIRE(position / kBlockTokens < chunk.block_tables[0].size());
      CHECK(chunk.tokens[position] < kVocabulary);
      if (position >= chunk.num_prompt_tokens) CHECK(chunk.tokens[position] == 7);
      const std::uint32_t block = value_of(chunk.block_tables[0][position / kBlockTokens]);
      CHECK(blocks.emplace(block, value_of(chunk.sequence)).first->second ==
            value_of(chunk.sequence));
    }
  }

  VirtualClock& clock_;
};

struct Run {
  WorkloadTimes times;
  std::vector<std::vector<RecordingExecutor::Chunk>> steps;
};

Run run_recorded(const Workload& workload, std::uint32_t step_tokens, std::uint32_t rounds) {
  VirtualClock clock;
  RecordingExecutor executor(clock);
  BenchSetup setup;
  setup.executor = &executor;
  setup.clock = &clock;
  setup.vocab_size = kVocabulary;
  setup.step_tokens = step_tokens;
  setup.rounds = rounds;
  Run run;
  run.times = run_workload(setup, workload, small_geometry());
  run.steps = std::move(executor.steps);
  const std::uint64_t room = bench_blocks(workload, small_geometry(), step_tokens);
  CHECK(executor.blocks.size() <= room);
  CHECK(executor.blocks.rbegin()->first < room);
  return run;
}

// --- bounds -----------------------------------------------------------------------------------

runtime::WeightMatrix matrix(runtime::GgmlType type, std::uint32_t rows, std::uint32_t cols) {
  const runtime::GgmlTypeInfo& info = runtime::type_info(type);
  runtime::WeightMatrix made;
  made.type = type;
  made.rows = rows;
  made.cols = cols;
  made.row_bytes = std::size_t{cols} / info.block_elements * info.block_bytes;
  return made;
}

/// The shapes of SmolLM2-135M; its Q4_1 file has a Q8_0 head.
runtime::ModelWeights smollm2_weights(runtime::GgmlType type) {
  runtime::ModelWeights weights;
  for (int i = 0; i < 30; ++i) {
    runtime::LayerWeights layer;
    layer.query = layer.attention_output = matrix(type, 576, 576);
    layer.key = layer.value = matrix(type, 192, 576);
    layer.ffn_gate = layer.ffn_up = matrix(type, 1536, 576);
    layer.ffn_down = matrix(type, 576, 1536);
    weights.layers.push_back(layer);
  }
  weights.output_head = matrix(runtime::GgmlType::kQ8_0, 49152, 576);
  return weights;
}

kvcache::KvGeometry smollm2_geometry() {
  kvcache::KvGeometry geometry;
  geometry.groups = {{.num_layers = 30, .num_kv_heads = 3, .head_dim = 64}};
  return geometry;
}

ModelWork smollm2_work(runtime::GgmlType type, Activations activations) {
  return model_work(runtime::planned_weights(smollm2_weights(type), activations),
                    smollm2_geometry());
}

constexpr std::uint64_t kLinearWeights = 106'168'320;  // 30 layers of 3 538 944
constexpr std::uint64_t kHeadWeights = 28'311'552;     // 49 152 x 576

BenchReport small_report() {
  BenchReport report;
  report.rounds = 3;
  report.machine.cpu = "a \xff CPU";
  report.work = smollm2_work(runtime::GgmlType::kQ4_1, Activations::kInt8);
  report.model.step_bytes = 96'000'000;
  BenchResult result;
  result.workload = decode(8, 128, 2);
  result.times.timed = {.tokens = 16, .seconds = {0.02, 0.01, 0.04}};
  result.times.steps = {{.tokens = 8, .head_rows = 8, .kv_tokens = 8 * 129},
                        {.tokens = 8, .head_rows = 8, .kv_tokens = 8 * 130}};
  result.times.prefill = TimedRounds{.tokens = 1024, .seconds = {0.5}};
  report.results.push_back(result);
  return report;
}

roofline::Roofline small_roofline() {
  roofline::Roofline roofline;
  roofline.readings = {{.bytes = 96'000'000, .bytes_per_second = {50e9, 49e9, 51e9}},
                       {.bytes = 900'000'000, .bytes_per_second = {40e9, 39e9, 41e9}}};
  roofline.int8_ops_per_second = {2000e9, 1900e9, 2100e9};
  roofline.f32_flops_per_second = {500e9, 490e9, 510e9};
  roofline.barriers_per_second = {2e6, 1e6, 3e6};
  return roofline;
}

}  // namespace

TEST_CASE("parse_workloads: a bare name is its usual sizes, a number one of them", "[cli]") {
  CHECK(parsed("prefill") == std::vector<Workload>{prefill(512)});
  CHECK(parsed("prefill:8000") == std::vector<Workload>{prefill(8000)});
  CHECK(parsed("decode:8") == std::vector<Workload>{decode(8, 128, 128)});
  CHECK(parsed("mixed") == std::vector<Workload>{mixed(8, 128, 512)});
  CHECK(parsed("mixed:3,prefill:1") == std::vector<Workload>{mixed(3, 128, 512), prefill(1)});
  std::vector<Workload> expected;
  for (const std::uint32_t count : {1U, 2U, 4U, 8U, 16U, 32U}) {
    expected.push_back(decode(count, 128, 128));
  }
  CHECK(parsed("decode") == expected);
  CHECK(parsed(WorkloadOptions{}.names).size() == 8);
}

TEST_CASE("parse_workloads: the prompt option is the prompt of what has no number for it",
          "[cli]") {
  CHECK(parsed("prefill", 4000) == std::vector<Workload>{prefill(4000)});
  CHECK(parsed("prefill:100", 4000) == std::vector<Workload>{prefill(100)});
  CHECK(parsed("decode:8", 4000) == std::vector<Workload>{decode(8, 4000, 128)});
  CHECK(parsed("mixed:2", 4000) == std::vector<Workload>{mixed(2, 128, 4000)});
}

TEST_CASE("parse_workloads: what is no workload is refused by name", "[cli]") {
  for (const char* names :
       {"", "foo", "prefill,", "decode:", "decode:0", "decode:-1", "decode:1x", "prefill: 5",
        "decode:4097", "prefill:16777217", "decode:99999999999", "Decode", "decode:8:8"}) {
    const std::string message = message_of([&] { (void)parsed(names); });
    INFO(names << " gives: " << message);
    CHECK(contains(message, "--workload"));
  }
  CHECK(contains(message_of([] { (void)parsed("foo"); }),
                 "\"foo\" is no workload; allowed: prefill"));
}

TEST_CASE("check_workload: the context and the step are held at their exact sizes", "[cli]") {
  const auto refusal = [](const Workload& workload, std::uint32_t context, std::uint32_t step) {
    return message_of(
        [&] { check_workload(workload, {.context_tokens = context, .step_tokens = step}); });
  };
  CHECK(refusal(prefill(512), 512, 1).empty());
  CHECK(
      contains(refusal(prefill(513), 512, 1), "prefill:513: 513 tokens are more than the context"));
  CHECK(refusal(decode(8, 100, 28), 128, 8).empty());
  CHECK(contains(refusal(decode(8, 100, 29), 128, 8), "decode:8: 129 tokens"));
  CHECK(contains(refusal(decode(9, 100, 28), 128, 8), "decode:9: 9 sequences"));
  // Seven decode beside an arriving prompt: room for one of its tokens in each step of eight.
  CHECK(refusal(mixed(7, 100, 28), 128, 8).empty());
  CHECK(contains(refusal(mixed(7, 101, 28), 128, 8), "mixed:7: 129 tokens"));
  CHECK(contains(refusal(mixed(8, 1, 1), 128, 8), "9 sequences"));
  CHECK(contains(refusal(mixed(1, 1, 129), 128, 8), "129 tokens"));
}

TEST_CASE("run_workload: a prompt is computed in full steps and sampled once", "[cli]") {
  const Run run = run_recorded(prefill(20), 8, 2);
  const std::vector<std::vector<RecordingExecutor::Chunk>> round = {
      {{0, 0, 8, false}}, {{0, 8, 8, false}}, {{0, 16, 4, true}}};
  REQUIRE(run.steps.size() == 9);  // a warm-up and two rounds, all alike
  for (std::size_t i = 0; i < 9; ++i) CHECK(run.steps[i] == round[i % 3]);
  CHECK(run.times.timed.tokens == 20);
  CHECK(run.times.timed.seconds.size() == 2);
  CHECK(run.times.timed.seconds[0] == Approx(0.023));  // three steps of 1 ms, 20 tokens of 1 ms
  CHECK(run.times.timed.seconds[1] == Approx(0.023));
  CHECK_FALSE(run.times.prefill);
  CHECK(run.times.steps == std::vector<StepShape>{{8, 0, 8}, {8, 0, 16}, {4, 1, 20}});
}

TEST_CASE("run_workload: decode times only the steps after the prompts, from there each round",
          "[cli]") {
  const Run run = run_recorded(decode(2, 5, 3), 8, 2);
  const std::vector<std::vector<RecordingExecutor::Chunk>> prompts = {
      {{0, 0, 5, true}, {1, 0, 3, false}}, {{1, 3, 2, true}}};
  REQUIRE(run.steps.size() == 2 * 2 + 3 * 3);  // prompts twice, then a warm-up and two rounds
  for (std::size_t i = 0; i < 4; ++i) CHECK(run.steps[i] == prompts[i % 2]);
  for (std::uint32_t i = 0; i < 9; ++i) {
    const std::uint32_t position = 5 + i % 3;
    CHECK(run.steps[4 + i] ==
          std::vector<RecordingExecutor::Chunk>{{0, position, 1, true}, {1, position, 1, true}});
  }
  CHECK(run.times.timed.tokens == 6);
  CHECK(run.times.timed.seconds.size() == 2);
  CHECK(run.times.timed.seconds[0] == Approx(0.009));  // three steps of 1 + 2 ms
  REQUIRE(run.times.prefill);
  CHECK(run.times.prefill->tokens == 10);
  CHECK(run.times.prefill->seconds.size() == 1);
  CHECK(run.times.prefill->seconds[0] == Approx(0.012));
  CHECK(run.times.steps == std::vector<StepShape>{{2, 2, 12}, {2, 2, 14}, {2, 2, 16}});
}

TEST_CASE("run_workload: sequences of several blocks share none", "[cli]") {
  const Run run = run_recorded(decode(3, 30, 20), 64, 1);
  CHECK(run.times.steps.size() == 20);
  CHECK(run.times.steps.back() == StepShape{3, 3, 150});
}

TEST_CASE("run_workload: mixed fills what room decoding leaves with the arriving prompt", "[cli]") {
  const Run run = run_recorded(mixed(2, 5, 10), 8, 1);
  REQUIRE(run.steps.size() == 2 * 2 + 2 * 2);
  for (std::size_t round = 0; round < 2; ++round) {
    CHECK(run.steps[4 + 2 * round] == std::vector<RecordingExecutor::Chunk>{
                                          {0, 5, 1, true}, {1, 5, 1, true}, {2, 0, 6, false}});
    CHECK(run.steps[5 + 2 * round] ==
          std::vector<RecordingExecutor::Chunk>{{0, 6, 1, true}, {1, 6, 1, true}, {2, 6, 4, true}});
  }
  CHECK(run.times.timed.tokens == 14);
  CHECK(run.times.timed.seconds[0] == Approx(0.016));
  CHECK(run.times.steps == std::vector<StepShape>{{8, 2, 18}, {6, 3, 24}});
}

TEST_CASE("model_work: SmolLM2's shapes give its known sizes", "[cli]") {
  const ModelWork work = smollm2_work(runtime::GgmlType::kQ4_1, Activations::kInt8);
  CHECK(work.layers.int8_macs == kLinearWeights);
  CHECK(work.layers.float_macs == 0);
  CHECK(work.head.int8_macs == kHeadWeights);
  CHECK(work.layers.bytes == kLinearWeights / 32 * 20);
  CHECK(work.head.bytes == kHeadWeights / 32 * 34);
  CHECK(work.kv_bytes_per_token == 23'040);
  CHECK(step_bytes(work, {.tokens = 8, .head_rows = 1, .kv_tokens = 100}) ==
        work.layers.bytes + work.head.bytes + 2'304'000);
  CHECK(step_bytes(work, {.tokens = 8}) == work.layers.bytes);
}

TEST_CASE("model_work: each matrix counts once", "[cli]") {
  runtime::ModelWeights weights;
  runtime::LayerWeights layer;
  std::uint32_t rows = 1;
  for (runtime::WeightMatrix* each :
       {&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.ffn_gate,
        &layer.ffn_up, &layer.ffn_down, &weights.output_head}) {
    *each = matrix(runtime::GgmlType::kQ8_0, rows, 32);
    rows *= 2;
  }
  weights.layers = {layer, layer};
  const ModelWork work = model_work(weights, smollm2_geometry());
  CHECK(work.layers.float_macs == 2 * 127 * 32);
  CHECK(work.layers.bytes == 2 * 127 * 34);
  CHECK(work.head.float_macs == 128 * 32);
}

TEST_CASE("model_work: weights of floats are multiplied as floats, and all of them where asked",
          "[cli]") {
  const ModelWork half = smollm2_work(runtime::GgmlType::kF16, Activations::kInt8);
  CHECK(half.layers.int8_macs == 0);
  CHECK(half.layers.float_macs == kLinearWeights);
  CHECK(half.layers.bytes == kLinearWeights * 2);
  CHECK(half.head.int8_macs == kHeadWeights);
  const ModelWork none = smollm2_work(runtime::GgmlType::kQ4_1, Activations::kF32);
  CHECK(none.layers.float_macs == kLinearWeights);
  CHECK(none.layers.bytes == kLinearWeights / 32 * 20);
  CHECK(none.head.float_macs == kHeadWeights);
}

TEST_CASE("bound_of: each step takes the longer of reading and computing", "[cli]") {
  const ModelWork work = smollm2_work(runtime::GgmlType::kQ4_1, Activations::kInt8);
  const MachineLimits limits = {
      .bytes_per_second = 50e9, .int8_ops_per_second = 2031e9, .f32_flops_per_second = 505e9};
  const StepShape one = {.tokens = 1, .head_rows = 1};
  const double bytes = 66'355'200.0 + 30'081'024.0;
  const Bound alone = bound_of(work, {&one, 1}, limits);
  CHECK(alone.seconds == Approx(bytes / 50e9));
  CHECK(alone.name == "memory");
  const StepShape prompt = {.tokens = 512, .head_rows = 1};
  const double prompt_seconds = 2.0 * (512.0 * kLinearWeights + kHeadWeights) / 2031e9;
  const Bound prefilled = bound_of(work, {&prompt, 1}, limits);
  CHECK(prefilled.seconds == Approx(prompt_seconds));
  CHECK(prefilled.name == "int8");
  const std::vector<StepShape> both = {one, prompt};
  CHECK(bound_of(work, both, limits).seconds == Approx(bytes / 50e9 + prompt_seconds));
  const ModelWork floats = smollm2_work(runtime::GgmlType::kQ4_1, Activations::kF32);
  const Bound in_floats = bound_of(floats, {&prompt, 1}, limits);
  CHECK(in_floats.seconds == Approx(prompt_seconds * 2031 / 505));
  CHECK(in_floats.name == "f32");
}

TEST_CASE("tokens_per_second: the median of the rounds, and the slowest and fastest of them",
          "[cli]") {
  const roofline::Rate odd = tokens_per_second({.tokens = 16, .seconds = {0.02, 0.01, 0.04}});
  CHECK(odd.median == Approx(800));
  CHECK(odd.min == Approx(400));
  CHECK(odd.max == Approx(1600));
  CHECK(tokens_per_second({.tokens = 16, .seconds = {0.01, 0.03}}).median == Approx(800));
}

TEST_CASE("reading_sizes: a size is measured once, and again only where it is far from the others",
          "[cli]") {
  BenchReport report = small_report();
  CHECK(reading_sizes(report) == std::vector<std::uint64_t>{96'000'000});  // 120 MB is near
  report.results[0].times.steps = {{.tokens = 8, .head_rows = 8, .kv_tokens = 32'000}};
  const std::uint64_t far = report.work.layers.bytes + report.work.head.bytes + 32'000ULL * 23'040;
  CHECK(reading_sizes(report) == std::vector<std::uint64_t>{96'000'000, far});
  report.results.push_back(report.results[0]);
  CHECK(reading_sizes(report).size() == 2);
}

TEST_CASE("bound_share: the reading of the nearest size counts", "[cli]") {
  BenchReport report = small_report();
  CHECK_FALSE(bound_share(report, report.results[0]));
  report.roofline = small_roofline();
  const auto share = bound_share(report, report.results[0]);
  REQUIRE(share);
  const double bytes = 2.0 * 96'436'224 + 8.0 * 259 * 23'040;
  CHECK(share->name == "memory");
  CHECK(share->tokens_per_second == Approx(16 / (bytes / 50e9)));
  CHECK(share->percent == Approx(100 * 800 * (bytes / 50e9) / 16));
  report.results[0].times.steps = {{.tokens = 8, .head_rows = 8, .kv_tokens = 32'000}};
  const double long_bytes = 96'436'224 + 32'000.0 * 23'040;
  CHECK(bound_share(report, report.results[0])->tokens_per_second ==
        Approx(16 / (long_bytes / 40e9)));
}

TEST_CASE("write_bench_json: scripts find what they compare", "[cli]") {
  BenchReport report = small_report();
  report.roofline = small_roofline();
  std::ostringstream out;
  write_bench_json(report, out);
  const Json json = Json::parse(out.str());
  for (const char* key : {"machine", "model", "results", "load_seconds", "peak_rss_bytes"}) {
    CHECK(json.contains(key));
  }
  for (const char* key :
       {"cpu", "cpus", "threads", "isa", "activations", "kernels", "kv_type", "commit"}) {
    CHECK(json["machine"].contains(key));
  }
  REQUIRE(json["results"].size() == 1);
  const Json& result = json["results"][0];
  CHECK(result["workload"] == "decode");
  CHECK(result["prompt_tokens"] == 128);
  CHECK(result["sequences"] == 8);
  CHECK(result["tokens_per_second"].get<double>() == Approx(800));
  CHECK(result["percent_of_bound"].get<double>() ==
        Approx(bound_share(report, report.results[0])->percent));
  CHECK(result["bound"] == "memory");
  CHECK(result["ms_per_step"].get<double>() == Approx(10));
  CHECK(result["prefill_tokens_per_second"].get<double>() == Approx(2048));

  report.roofline.reset();
  out.str("");
  write_bench_json(report, out);
  const Json without = Json::parse(out.str());
  CHECK(without["roofline"].is_null());
  CHECK(without["results"][0]["percent_of_bound"].is_null());
}

TEST_CASE("write_bench_text: the table says what was not measured", "[cli]") {
  BenchReport report = small_report();
  std::ostringstream out;
  write_bench_text(report, out);
  CHECK(contains(out.str(), "scheduling, text and HTTP are not in it"));
  CHECK(contains(out.str(), "decode:8"));
  CHECK_FALSE(contains(out.str(), "limits here"));
  report.roofline = small_roofline();
  write_bench_text(report, out);
  CHECK(contains(out.str(), "limits here: 50.0 GB/s"));
  CHECK(contains(out.str(), "a barrier 500 ns"));
}

TEST_CASE("measure_roofline: every set that the CPU has gives figures in their order", "[cli]") {
  for (const runtime::Isa isa : runtime::compiled_isas()) {
    if (!runtime::cpu_supports(isa)) continue;
    INFO(runtime::isa_name(isa));
    const roofline::Roofline measured =
        roofline::measure_roofline({.isa = isa, .num_threads = 2, .read_bytes = {1, 3'000'000}});
    REQUIRE(measured.readings.size() == 2);
    CHECK(measured.readings[0].bytes == 8192);  // a page for each thread
    CHECK(measured.readings[1].bytes >= 3'000'000);
    CHECK(measured.readings[1].bytes % 8192 == 0);
    for (const roofline::Rate& rate :
         {measured.readings[0].bytes_per_second, measured.readings[1].bytes_per_second,
          measured.int8_ops_per_second, measured.f32_flops_per_second,
          measured.barriers_per_second}) {
      CHECK(std::isfinite(rate.max));
      CHECK(rate.min > 0);
      CHECK(rate.median >= rate.min);
      CHECK(rate.median <= rate.max);
    }
  }
}
