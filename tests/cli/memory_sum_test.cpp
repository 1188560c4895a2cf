// The start-up sum and the sentences made of it.
#include "cli/memory_sum.h"

#include "tests/support/catch.h"

using namespace kvasir::cli;

namespace {

MemoryInputs small_model() {
  MemoryInputs in;
  in.weight_bytes = 100ULL << 20U;
  in.kv_block_bytes = 737'280;
  in.kv_blocks = 100;
  in.executor_buffer_bytes = 10ULL << 20U;
  in.vocabulary_tokens = 49'152;
  in.max_sequences = 8;
  in.max_waiting = 16;
  in.context_tokens = 2048;
  return in;
}

MemoryLimit limit_of(std::uint64_t limit, std::uint64_t available) {
  return {limit, "cgroup limit", available};
}

}  // namespace

TEST_CASE("memory_sum: each part counts once, and the arena is blocks times bytes", "[cli]") {
  const MemorySum sum = memory_sum(small_model());
  std::uint64_t total = 0;
  bool arena = false;
  for (const MemoryPart& part : sum.parts) {
    total += part.bytes;
    if (part.name == "KV arena") arena = part.bytes == 73'728'000;
    CHECK(part.bytes > 0);
  }
  CHECK(arena);
  CHECK(sum.total_bytes() == total);
}

TEST_CASE("memory_sum: more of anything needs more", "[cli]") {
  const std::uint64_t before = memory_sum(small_model()).total_bytes();
  for (const auto member :
       {&MemoryInputs::weight_bytes, &MemoryInputs::kv_blocks, &MemoryInputs::executor_buffer_bytes,
        &MemoryInputs::vocabulary_tokens, &MemoryInputs::max_sequences, &MemoryInputs::max_waiting,
        &MemoryInputs::context_tokens}) {
    MemoryInputs in = small_model();
    in.*member += 1'000;
    CHECK(memory_sum(in).total_bytes() > before);
  }
}

TEST_CASE("memory_refusal: a sum of exactly the limit fits, one byte less does not", "[cli]") {
  const MemorySum sum = memory_sum(small_model());
  CHECK(memory_refusal(sum, limit_of(sum.total_bytes(), 0)).empty());
  const std::string text = memory_refusal(sum, limit_of(sum.total_bytes() - 1, 0));
  CHECK(text.find("cgroup limit") != std::string::npos);
  CHECK(text.find("KV arena 70.3 MiB") != std::string::npos);
  CHECK(text.find('\n') == std::string::npos);
  CHECK(memory_refusal(sum, limit_of(0, 0)).empty());
}

TEST_CASE("memory_warning: less available than needed is said", "[cli]") {
  const MemorySum sum = memory_sum(small_model());
  CHECK(memory_warning(sum, limit_of(1ULL << 40U, sum.total_bytes())).empty());
  CHECK_FALSE(memory_warning(sum, limit_of(1ULL << 40U, sum.total_bytes() - 1)).empty());
  CHECK(memory_warning(sum, limit_of(1ULL << 40U, 0)).empty());
}

TEST_CASE("bytes_text: sizes have two digits that matter", "[cli]") {
  CHECK(bytes_text(0) == "0 bytes");
  CHECK(bytes_text(1'048'575) == "1048575 bytes");
  CHECK(bytes_text(1'572'864) == "1.5 MiB");
  CHECK(bytes_text(1'610'612'736) == "1.50 GiB");
}
