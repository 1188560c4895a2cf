// The smallest model that the reader takes, for tests that then damage one thing of it.
#pragma once

#include "tests/support/gguf_writer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::runtime::test {

/// One layer of width 32 with 4 heads of 8 over 2 KV heads, feed-forward 32, vocabulary 10, all F32
/// but a Q8_0 ffn_down. `architecture` is the prefix of its keys.
kvasir::test::GgufWriter small_model(const std::string& architecture = "llama");

/// What open, configuration and weights say about the file, in this order: the first message, or ""
/// when all are well.
std::string verdict_on(const std::string& bytes);

/// `count` floats of 0.5.
std::string float_data(std::uint64_t count);

}  // namespace kvasir::runtime::test
