// The forward pass of one sequence written plainly in double precision, without chunks, caches,
// blocks or kernels: what the decoder's results are compared with where there is no file of another
// implementation's. It reads float32 matrices as a file has them.
#pragma once

#include "core/ids.h"
#include "tests/runtime/decoder/test_models.h"

#include <vector>

namespace kvasir::runtime::test {

/// Raw logits [position][vocab_size] of every token.
std::vector<std::vector<double>> plain_logits(const TestModel& model,
                                              const std::vector<TokenId>& tokens);

}  // namespace kvasir::runtime::test
