// Bounds on what one request may hold, as the operator set them. Who enforces which: the JSON front
// (depth, values), the validator (counts, stop strings), the chat template (steps, bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvasir::server {

struct RequestLimits {
  std::size_t json_depth = 64;
  std::size_t json_values = 200'000;  // members and elements of all objects and arrays
  std::size_t messages = 2048;
  std::size_t prompts = 128;
  std::int64_t choices = 128;  // n, and n times the number of prompts
  std::size_t stop_strings = 16;
  std::size_t stop_bytes = 256;  // of one stop string
  std::uint64_t template_steps = 1'000'000;
  std::uint64_t rendered_bytes = 32ULL << 20U;    // of a prompt that a template made
  std::vector<std::string> chat_template_kwargs;  // names that requests may set
};

}  // namespace kvasir::server
