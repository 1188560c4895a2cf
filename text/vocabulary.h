// What a model file says about its text side, free of any file format: the CLI fills it from GGUF
// metadata. Nothing is interpreted here; tokenizer and chat_template do that.
#pragma once

#include "core/ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::text {

/// GGUF's tokenizer.ggml.token_type values.
enum class TokenType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Vocabulary {
  std::string model;          // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SPM)
  std::string pre_tokenizer;  // tokenizer.ggml.pre: "smollm", "qwen2", "default", ...
  std::vector<std::string> tokens;  // [vocab] as spelled in the file
  std::vector<float> scores;        // [vocab] or empty
  std::vector<TokenType> types;     // [vocab] or empty (all normal)
  std::vector<std::string> merges;  // "left right", BPE only
  std::optional<TokenId> bos, eos, eot, eom, unknown, padding;
  std::optional<bool> add_bos;           // absent: the model kind's default
  std::optional<bool> add_space_prefix;  // SPM; absent: true
  std::optional<std::string> chat_template;
};

}  // namespace kvasir::text
