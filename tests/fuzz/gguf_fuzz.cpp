// A model file from first byte to everything that is made of it before serving: container,
// configuration, weights and their digest, vocabulary, tokenizer, chat template, and both reports
// of `kvasir inspect`. The forward pass is not run.
#include "cli/inspect.h"
#include "cli/load_model.h"
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/gguf_writer.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <string>

using namespace kvasir;
using fuzz::require;

namespace {

constexpr const char* kText = "Hello w\xC3\xB6rld <|im_end|> 42\n  x";

void check_one_line(const std::string& message) {
  require(!message.empty() && std::none_of(message.begin(), message.end(),
                                           [](char c) {
                                             const auto byte = static_cast<unsigned char>(c);
                                             return byte < 0x20 || byte == 0x7F;
                                           }),
          "an error is one line without control characters", message);
}

/// True when the file's text side is usable; what it tokenises comes back byte for byte.
void read_text(const runtime::GgufFile& file) {
  const auto vocabulary = cli::read_vocabulary(file);
  if (!vocabulary) return check_one_line(vocabulary.error().message);
  const auto tokenizer = text::Tokenizer::create(*vocabulary);
  if (!tokenizer) {
    require(tokenizer.error().code != ErrorCode::kInternal, "no panic", tokenizer.error().message);
    return;
  }
  const auto ids = (*tokenizer)->encode(kText, {.add_bos = true, .parse_special = false});
  if (ids) static_cast<void>((*tokenizer)->decode(*ids, true, true));
  if (!vocabulary->chat_template) return;
  const auto made =
      text::ChatTemplate::create(*vocabulary->chat_template, **tokenizer,
                                 {.max_steps = 10'000, .max_output_bytes = 1U << 16U});
  if (!made) return;
  const auto rendered = (*made)->render({{"user", "hi", {}, {}}}, true, "2026-03-01T12:00:00");
  if (rendered) static_cast<void>((*tokenizer)->encode_segments(*rendered, true));
}

void read_all(const std::string& path) {
  const auto file = runtime::GgufFile::open(path);
  if (!file) {
    check_one_line(file.error().message);
    return require(file.error().message.rfind(path + ": byte ", 0) == 0,
                   "a damaged file is told with its name and the offset", file.error().message);
  }
  if (const auto config = runtime::read_model_config(**file); !config) {
    check_one_line(config.error().message);
  } else {
    static_cast<void>(runtime::model_hash(**file, *config, 1));
    if (const auto weights = runtime::read_weights(**file, *config); !weights)
      check_one_line(weights.error().message);
  }
  read_text(**file);
}

void inspect(const std::string& path, bool json) {
  std::ostringstream out;
  std::ostringstream errors;
  const int exit_code = cli::run_inspect(path, json, out, errors);
  require(exit_code == 0 || exit_code == 2, "inspect ends with 0 or 2");
  require((exit_code == 0) == errors.str().empty(), "errors and the exit code agree");
  if (json && exit_code == 0) static_cast<void>(nlohmann::json::parse(out.str()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::MemoryFile file;
  file.write({reinterpret_cast<const char*>(data), size});
  read_all(file.path());
  // Building a tokenizer is most of the time: one form of the report for each input.
  inspect(file.path(), /*json=*/size % 2 == 0);
  return 0;
}
