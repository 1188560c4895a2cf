// Stop strings over a stream of tokens: joined, the pieces of any poll pattern are the text that a
// naive matcher cuts from the whole, no piece shows what may yet become a stop, and nothing else is
// held back. The decoder of characters is taken as it is.
#include "server/stream_assembler.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/server/tiny_model.h"
#include "text/incremental_decoder.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

using namespace kvasir;
using namespace kvasir::server;
using fuzz::ByteSource;
using fuzz::require;
using server::testing::kImEnd;
using server::testing::kTinyVocabSize;
using server::testing::tiny_tokenizer;

namespace {

constexpr std::size_t kMaxTokens = 200;
/// Few letters, so that stops and text meet; the last two are halves of a character.
constexpr std::string_view kLetters = "aabbhelo <|im_end|>\xC3\xA9";

struct Case {
  AssemblyRules rules;
  std::vector<TokenId> tokens;
  std::uint64_t polls = 0;
};

std::string stop_of(ByteSource& source) {
  std::string stop;
  const std::size_t letters = 1 + source.byte() % 7U;
  for (std::size_t i = 0; i < letters; ++i) {
    const std::uint8_t pick = source.byte();
    stop += pick % 8U == 7 ? std::string("\xC3\xA9")
                           : std::string(1, kLetters[pick % (kLetters.size() - 2)]);
  }
  return stop;
}

Case read_case(ByteSource& source) {
  Case made;
  const std::uint8_t flags = source.byte();
  made.rules.include_stop_str_in_output = (flags & 1U) != 0;
  made.rules.skip_special_tokens = (flags & 2U) == 0;
  made.rules.token_ids = (flags & 4U) != 0;
  made.rules.logprobs = (flags & 8U) != 0;
  made.rules.min_tokens = source.byte() % 9U;
  for (std::size_t i = source.byte() % 5U; i > 0; --i) made.rules.stop.push_back(stop_of(source));
  made.rules.ending_token_ids = {kImEnd};
  if ((flags & 16U) != 0) {
    made.rules.ending_token_ids = {'o', kImEnd};
    made.rules.own_stop_token_ids = {'o'};
  }
  made.polls = source.number();
  while (!source.empty() && made.tokens.size() < kMaxTokens) {
    const std::uint8_t pick = source.byte();
    // Mostly few letters, the rest any token: bytes, merged ones, control tokens, padding.
    made.tokens.push_back(pick < 192 ? static_cast<std::uint8_t>(kLetters[pick % kLetters.size()])
                                     : (pick * 256U + source.byte()) % kTinyVocabSize);
  }
  return made;
}

bool contains(const std::vector<TokenId>& list, TokenId token) {
  return std::find(list.begin(), list.end(), token) != list.end();
}

/// What must be known after each token, by looking at the whole text each time.
struct Reference {
  std::string text;          // all text so far, as far as it is settled or not
  std::size_t searched = 0;  // stops count from here on
  std::optional<std::string> stop;

  /// The stop that is complete first, the longest of those, with all in front of its end.
  void cut(const AssemblyRules& rules) {
    for (std::size_t end = searched + 1; end <= text.size() && !stop; ++end) {
      for (const std::string& candidate : rules.stop) {
        const bool fits = candidate.size() <= end - searched &&
                          text.compare(end - candidate.size(), candidate.size(), candidate) == 0;
        if (fits && (!stop || candidate.size() > stop->size())) stop = candidate;
      }
      if (stop) text.resize(rules.include_stop_str_in_output ? end : end - stop->size());
    }
  }

  /// Bytes of `text` that no later token can take back.
  [[nodiscard]] std::size_t settled(const AssemblyRules& rules) const {
    if (stop) return text.size();
    for (std::size_t from = searched; from < text.size(); ++from) {
      const std::string_view open = std::string_view(text).substr(from);
      for (const std::string& candidate : rules.stop) {
        if (candidate.size() > open.size() && candidate.compare(0, open.size(), open) == 0)
          return from;
      }
    }
    return text.size();
  }
};

void check(const Case& made) {
  StreamAssembler assembler(tiny_tokenizer(), made.rules);
  text::IncrementalDecoder decoder(tiny_tokenizer(), !made.rules.skip_special_tokens);
  Reference reference;
  std::string joined;
  std::size_t num_ids = 0;
  std::size_t num_entries = 0;
  std::uint32_t counted = 0;
  std::optional<TokenId> ended_by;
  const auto take = [&] {
    const ChoiceDelta delta = assembler.take();
    joined += delta.text;
    num_ids += delta.token_ids.size();
    num_entries += delta.logprobs.size();
    require(
        !delta.text.empty() || delta.finish || (delta.token_ids.empty() && delta.logprobs.empty()),
        "entries travel with text or with the finish");
    return delta;
  };
  for (const TokenId token : made.tokens) {
    ++counted;
    const bool ends = contains(made.rules.ending_token_ids, token);
    const bool completed = assembler.push({.token = token, .logprob = -1.0F, .top = {}});
    if (!ends || made.rules.include_stop_str_in_output) {
      reference.text += decoder.push(token);
      if (counted < made.rules.min_tokens) {
        reference.searched = reference.text.size();
      } else {
        reference.cut(made.rules);
      }
    }
    require(completed == reference.stop.has_value(), "push says when a stop is complete");
    if ((made.polls >> (counted % 64U) & 1U) != 0) {
      static_cast<void>(take());
      require(joined == std::string_view(reference.text).substr(0, reference.settled(made.rules)),
              "what was sent is what is settled, no more and no less", joined);
    }
    if (ends) ended_by = token;
    if (completed || ends) break;
  }
  // A push after the end changes nothing.
  if (reference.stop) require(!assembler.push({.token = 'a', .logprob = 0, .top = {}}), "it ended");
  assembler.finish(ended_by ? FinishReason::kStop : FinishReason::kLength, ended_by);
  const ChoiceDelta last = take();
  require(joined == reference.text, "the joined pieces are the whole answer", joined);
  require(last.finish.has_value() && last.stop_string == reference.stop, "the stop is named");
  require(
      *last.finish == (reference.stop || ended_by ? FinishReason::kStop : FinishReason::kLength),
      "the reason is right");
  const bool own =
      !reference.stop && ended_by && contains(made.rules.own_stop_token_ids, *ended_by);
  require(last.stop_token == (own ? ended_by : std::nullopt), "the stop token is named");
  require(assembler.counted_tokens() == counted, "tokens count up to the one that ends");
  require(num_ids == (made.rules.token_ids ? counted : 0), "one id for each counted token");
  require(num_entries == (made.rules.logprobs ? counted : 0), "one entry for each counted token");
  require(assembler.take().text.empty(), "nothing comes after the end");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ByteSource source(data, size);
  check(read_case(source));
  return 0;
}
