// Vocabularies and golden rows for the tests of text/: from model files (through runtime's GGUF
// reader) and from the small committed SPM vocabulary. Nothing here tokenises.
#pragma once

#include "text/tokenizer.h"
#include "text/vocabulary.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvasir::text {

/// A file of tests/golden/text.
std::filesystem::path golden_path(const std::string& name);
/// One JSON value a line. Key order is kept: templates can see it.
std::vector<nlohmann::ordered_json> read_json_lines(const std::filesystem::path& path);
nlohmann::ordered_json read_json(const std::filesystem::path& path);

/// KVASIR_TEST_MODEL, or the default model where the cache has it.
std::optional<std::filesystem::path> default_model();
/// KVASIR_TEST_GEMMA: only the long tier sets it.
std::optional<std::filesystem::path> gemma_model();

/// Throws when the file cannot be read.
Vocabulary vocabulary_from_gguf(const std::filesystem::path& path);
/// The committed vocabulary that make_spm_vocabulary.py trained.
Vocabulary small_spm_vocabulary(bool add_space_prefix);
/// A byte-level vocabulary of 256 bytes, a few merges and ChatML's control tokens; enough for
/// whatever needs no model.
Vocabulary tiny_byte_level_vocabulary();

/// Throws what went wrong.
std::unique_ptr<Tokenizer> build_tokenizer(const Vocabulary& vocabulary);

}  // namespace kvasir::text
