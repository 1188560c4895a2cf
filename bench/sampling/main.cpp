// Speed of the sampler alone, on one thread: microseconds of CPU time for one token, by request and
// by the shape of the logits, for each instruction set. Prints the median of many calls. Usage:
// kvasir_bench_sampling [ISA [VOCABULARY]]; nothing else should run meanwhile.

#include "core/rng.h"
#include "runtime/kernels/dispatch.h"
#include "runtime/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <time.h>
#include <utility>
#include <vector>

namespace {

using namespace kvasir;
using namespace kvasir::runtime;

struct Case {
  const char* name = "";
  Request request;
};

struct Shape {
  const char* name = "";
  std::vector<float> logits;  // [vocab_size]
};

/// CPU time of this thread: neighbours who take the core do not count (those who take the caches
/// do).
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Probabilities fall as 1 / rank^exponent, ranks shuffled over the ids: what models give. With
/// exponent 1.6 the best token has 0.44 and 0.95 takes about 90 tokens; with 2.2 they are 0.67 and
/// 8, with 1.2 0.20 and some ten thousand.
std::vector<float> power_law(std::uint32_t vocab_size, double exponent) {
  std::vector<float> logits(vocab_size);
  for (std::uint32_t rank = 0; rank < vocab_size; ++rank) {
    logits[rank] = static_cast<float>(18.0 - exponent * std::log(1.0 + rank));
  }
  for (std::uint32_t i = vocab_size - 1; i > 0; --i) {
    const double uniform = uniform01({.seed = 7, .position = i});
    std::swap(logits[i], logits[static_cast<std::uint32_t>(uniform * (i + 1))]);
  }
  return logits;
}

std::vector<float> nearly_equal(std::uint32_t vocab_size) {
  std::vector<float> logits(vocab_size);
  for (std::uint32_t i = 0; i < vocab_size; ++i) {
    logits[i] = 1.0F + 1e-3F * static_cast<float>(uniform01({.seed = 8, .position = i}));
  }
  return logits;
}

std::vector<float> ascending(std::uint32_t vocab_size) {
  std::vector<float> logits(vocab_size);
  for (std::uint32_t i = 0; i < vocab_size; ++i) logits[i] = static_cast<float>(i) * 1e-4F;
  return logits;
}

std::vector<Shape> make_shapes(std::uint32_t vocab_size) {
  return {{"sharp 2.2", power_law(vocab_size, 2.2)}, {"usual 1.6", power_law(vocab_size, 1.6)},
          {"broad 1.2", power_law(vocab_size, 1.2)}, {"equal", std::vector<float>(vocab_size)},
          {"nearly eq", nearly_equal(vocab_size)},   {"ascending", ascending(vocab_size)}};
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, float temperature, std::uint32_t top_k, float top_p,
                       float min_p) -> Request& {
    SamplingParams sampling;
    sampling.temperature = temperature;
    sampling.top_k = top_k;
    sampling.top_p = top_p;
    sampling.min_p = min_p;
    cases.push_back({name, {}});
    cases.back().request.sampling = sampling;
    return cases.back().request;
  };
  const auto penalise = [](Request& request) {
    request.sampling.repetition_penalty = 1.1F;
    request.sampling.presence_penalty = 0.5F;
    request.sampling.frequency_penalty = 0.2F;
  };
  add("greedy", 0.0F, 0, 1.0F, 0.0F);
  add("greedy, 20 logprobs", 0.0F, 0, 1.0F, 0.0F).top_logprobs = 20;
  penalise(add("greedy, penalties", 0.0F, 0, 1.0F, 0.0F));
  add("temperature 1", 1.0F, 0, 1.0F, 0.0F);
  add("temperature 0.8", 0.8F, 0, 1.0F, 0.0F);
  add("0.8, top_k 40", 0.8F, 40, 1.0F, 0.0F);
  add("0.8, top_k 1000", 0.8F, 1000, 1.0F, 0.0F);
  add("0.8, top_p 0.95", 0.8F, 0, 0.95F, 0.0F);
  add("0.8, min_p 0.05", 0.8F, 0, 1.0F, 0.05F);
  add("0.8, top_p, min_p", 0.8F, 0, 0.95F, 0.05F);
  add("0.8, k 40, p, min_p", 0.8F, 40, 0.95F, 0.05F);
  penalise(add("0.8, top_p, penalties", 0.8F, 0, 0.95F, 0.0F));
  add("0.8, top_p, 20 logprobs", 0.8F, 0, 0.95F, 0.0F).top_logprobs = 20;
  return cases;
}

/// Median of the calls of 20 ms, at least 15, each at another position and so with another draw.
double microseconds(const KernelTable& kernels, const Case& what, const Shape& shape,
                    std::span<const TokenId> history, SamplerScratch& scratch) {
  std::vector<double> times;
  const double start = cpu_seconds();
  for (std::size_t i = 0; times.size() < 15 || cpu_seconds() - start < 0.02; ++i) {
    SampleInput input;
    input.logits = shape.logits;
    input.history = history.last(history.size() - i % 100);
    input.num_prompt_tokens = 500;
    input.request = &what.request;
    const double before = cpu_seconds();
    (void)sample(kernels, input, scratch);
    times.push_back(cpu_seconds() - before);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2] * 1e6;
}

void bench_set(const KernelTable& kernels, std::uint32_t vocab_size) {
  std::vector<TokenId> history(2000);
  for (std::size_t i = 0; i < history.size(); ++i) {
    const double uniform = uniform01({.seed = 9, .position = i});
    history[i] = static_cast<TokenId>(uniform * uniform * vocab_size);
  }
  SamplerScratch scratch(vocab_size);
  const std::vector<Shape> shapes = make_shapes(vocab_size);
  std::printf("%s, vocabulary %u: microseconds a token\n%-25s", kernels.name, vocab_size, "");
  for (const Shape& shape : shapes) std::printf(" %9s", shape.name);
  for (const Case& what : make_cases()) {
    std::printf("\n%-25s", what.name);
    for (const Shape& shape : shapes) {
      std::printf(" %9.1f", microseconds(kernels, what, shape, history, scratch));
    }
  }
  std::printf("\n\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int vocab_size = argc > 2 ? std::atoi(argv[2]) : 49152;
  for (const Isa isa : compiled_isas()) {
    if (!cpu_supports(isa) || isa == Isa::kAvxVnni) continue;  // its sampling is AVX2's
    if (argc > 1 && isa_name(isa) != argv[1]) continue;
    bench_set(kernels_for(isa), static_cast<std::uint32_t>(std::max(1, vocab_size)));
  }
  return EXIT_SUCCESS;
}
