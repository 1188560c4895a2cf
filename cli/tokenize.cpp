// `kvasir tokenize`: text to ids and back with the model's own vocabulary, without loading its
// weights.
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/logging.h"
#include "cli/startup_error.h"
#include "config/cli_flags.h"
#include "config/option_table.h"
#include "server/utf8.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace kvasir::cli {
namespace {

struct TokenizeFlags {
  std::string text;
  bool has_text = false;
  bool detokenize = false;
  bool special = false;
  bool bos = false;
  bool pieces = false;
};

std::string input_of(const TokenizeFlags& flags) {
  if (flags.has_text) return flags.text;
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

/// Decimal ids separated by spaces, commas or line ends.
std::vector<TokenId> parse_ids(const std::string& text, std::size_t vocabulary_size) {
  std::vector<TokenId> ids;
  for (std::size_t at = 0; (at = text.find_first_not_of(" ,\t\r\n[]", at)) != std::string::npos;) {
    const std::size_t end = text.find_first_of(" ,\t\r\n[]", at);
    const std::string word = text.substr(at, end == std::string::npos ? end : end - at);
    const bool digits =
        word.size() <= 9 && word.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoul(word) >= vocabulary_size) {
      throw StartupError("tokenize: " + config::quoted(word) + " is no token id; allowed: 0 to " +
                         std::to_string(vocabulary_size - 1));
    }
    ids.push_back(static_cast<TokenId>(std::stoul(word)));
    at = end == std::string::npos ? text.size() : end;
  }
  return ids;
}

int run(const TokenizeFlags& flags, const config::LoadedOptions& loaded) {
  const TextModel model = load_text_model(
      resolve_model_path({loaded.options.model_path, config::origin_of(loaded, "model")}));
  const text::Tokenizer& tokenizer = *model.tokenizer;
  const std::string input = input_of(flags);
  if (flags.detokenize) {
    const auto ids = parse_ids(input, tokenizer.vocabulary_size());
    std::cout << tokenizer.decode(ids, flags.special, true);
    return 0;
  }
  if (!server::is_utf8(input)) throw StartupError("tokenize: the text is not UTF-8");
  const auto ids = value_or_throw(
      tokenizer.encode(input, {.add_bos = flags.bos, .parse_special = flags.special}), "tokenize");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (flags.pieces) {
      std::cout << ids[i] << '\t' << line_escaped(tokenizer.token_bytes_with_special(ids[i]))
                << '\n';
    } else {
      std::cout << (i == 0 ? "" : " ") << ids[i];
    }
  }
  if (!flags.pieces) std::cout << '\n';
  return 0;
}

}  // namespace

Command add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand(
      "tokenize", "Print the token ids of a text (argument or standard input), or the text of ids");
  CLI::Option* text = command->add_option("text", flags->text, "Text, or ids with --detokenize");
  command->add_flag("--detokenize", flags->detokenize, "The input is ids; print their text");
  command->add_flag("--special", flags->special, "Recognise, or spell out, control tokens");
  command->add_flag("--bos", flags->bos, "Put BOS in front if the model wants it");
  command->add_flag("--pieces", flags->pieces, "One line for each token: id, tab, its bytes");
  const auto sources = config::add_option_flags(*command, config::kTokenize);
  return [flags, text, sources] {
    flags->has_text = text->count() > 0;
    return run(*flags, config::load_options(*sources));
  };
}

}  // namespace kvasir::cli
