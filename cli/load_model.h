// From a GGUF file to what the daemon runs: configuration, weights, tokenizer and chat template.
// The file formats are runtime's, the text side is text's; here the keys of the one become the
// fields of the other.
#pragma once

#include "cli/named_path.h"
#include "core/result.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

#include <memory>
#include <string>

namespace kvasir::cli {

/// The file behind the option: "default" is the one that deploy/setup.sh keeps below
/// ${XDG_CACHE_HOME:-~/.cache}. Throws StartupError for what is not a readable regular file (a FIFO
/// would block for ever).
[[nodiscard]] NamedPath resolve_model_path(NamedPath option);

/// The tokenizer.ggml.* keys. Errors: kInvalidModelFile naming the key.
[[nodiscard]] Result<text::Vocabulary> read_vocabulary(const runtime::GgufFile& file);

struct TextModel {
  std::unique_ptr<runtime::GgufFile> file;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<std::string> chat_template_source;  // the file's own
};
/// Throws StartupError.
[[nodiscard]] TextModel load_text_model(const NamedPath& file);

struct LoadedModel {
  TextModel text;
  runtime::ModelConfig config;
  runtime::ModelWeights weights;  // views into text.file until engine_stack packs them
  std::unique_ptr<text::ChatTemplate>
      chat_template;  // null: none, or `chat_template_warning` says why
  std::string chat_template_warning;
};
/// `chat_template` replaces the file's template; an empty path keeps it. A bad template of the
/// model file is only a warning, since completions do not need it; a bad file named by the operator
/// is an error. Throws StartupError.
[[nodiscard]] std::unique_ptr<LoadedModel> load_model(const NamedPath& file,
                                                      const NamedPath& chat_template,
                                                      const text::RenderLimits& limits);

/// Whole content of a regular file of at most `max_bytes`. Throws StartupError.
[[nodiscard]] std::string read_file(const NamedPath& file, std::uintmax_t max_bytes);

}  // namespace kvasir::cli
