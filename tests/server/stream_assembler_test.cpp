// Stop strings over token borders, characters over tokens, logprob entries and counts; and that no
// cut into tokens or polls changes what comes out.
#include "server/stream_assembler.h"

#include "core/rng.h"
#include "tests/server/tiny_model.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <array>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;

namespace {

struct Assembled {
  std::string text;
  std::vector<std::string> pieces;
  std::size_t entries = 0;
  std::string entry_bytes;
  std::uint32_t counted = 0;
  std::optional<std::string> stop_string;
  std::optional<TokenId> stop_token;
  FinishReason reason = FinishReason::kStop;
};

void add(Assembled& all, const ChoiceDelta& delta) {
  if (!delta.text.empty()) all.pieces.push_back(delta.text);
  all.text += delta.text;
  all.entries += delta.logprobs.size();
  for (const LogprobEntry& entry : delta.logprobs) all.entry_bytes += entry.chosen.bytes;
  if (delta.text.empty() && !delta.finish) CHECK(delta.logprobs.empty());
  if (!delta.finish) return;
  all.reason = *delta.finish;
  all.stop_string = delta.stop_string;
  all.stop_token = delta.stop_token;
}

AssemblyRules rules(std::vector<std::string> stop) {
  return {.stop = std::move(stop),
          .ending_token_ids = {kImEnd},
          .own_stop_token_ids = {},
          .logprobs = true,
          .token_ids = true};
}

/// Pushes all tokens, taking after each for which `polls` says so, and ends like the engine would.
Assembled assemble(const std::vector<TokenId>& tokens, AssemblyRules with,
                   std::uint64_t polls = ~0ULL) {
  const std::vector<TokenId> ending = with.ending_token_ids;
  StreamAssembler assembler(tiny_tokenizer(), std::move(with));
  Assembled all;
  FinishReason reason = FinishReason::kLength;
  std::optional<TokenId> stop_token;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    assembler.push({.token = tokens[i], .logprob = -1.0F, .top = {}});
    if ((polls >> (i % 64) & 1U) != 0) add(all, assembler.take());
    if (std::find(ending.begin(), ending.end(), tokens[i]) == ending.end()) continue;
    reason = FinishReason::kStop;
    stop_token = tokens[i];
    break;
  }
  assembler.finish(reason, stop_token);
  add(all, assembler.take());
  all.counted = assembler.counted_tokens();
  return all;
}

}  // namespace

TEST_CASE("StreamAssembler: a stop spread over tokens is cut and named, and ends the count",
          "[server]") {
  // "say " "hello" "wor" ...: the stop begins inside one token and ends inside a third.
  const std::vector<TokenId> tokens = {'a', kHello, 'w', 'o', kHello, 'z'};
  const Assembled all = assemble(tokens, rules({"llowohe"}));
  CHECK(all.text == "ahe");
  CHECK(all.stop_string == "llowohe");
  CHECK(all.reason == FinishReason::kStop);
  CHECK(all.counted == 5);
  CHECK(all.entries == 5);
  CHECK(all.entry_bytes == "ahellowohello");
}

TEST_CASE("StreamAssembler: text is held back only while it may become a stop", "[server]") {
  const Assembled all = assemble(byte_tokens("STxSTOyS"), rules({"STOP"}));
  CHECK(all.text == "STxSTOyS");
  CHECK(all.pieces == std::vector<std::string>{"STx", "STOy", "S"});
  CHECK(!all.stop_string);
  CHECK(all.reason == FinishReason::kLength);
  // A part of the hold-back may go while its end still waits.
  CHECK(assemble(byte_tokens("aabx"), rules({"aab"})).text.empty());
  CHECK(assemble(byte_tokens("aaabx"), rules({"aab"})).text == "a");
}

TEST_CASE("StreamAssembler: the stop that is complete first wins, however the text came",
          "[server]") {
  CHECK(assemble(byte_tokens("xhello"), rules({"hello", "ell"})).text == "xh");
  CHECK(assemble({'x', kHello}, rules({"hello", "ell"})).text == "xh");
  CHECK(assemble({'x', kHello}, rules({"ello", "hello"})).stop_string ==
        "hello");  // same end: the longest
  CHECK(assemble({'x', kHello}, rules({"hello", "ello"})).text == "x");
}

TEST_CASE("StreamAssembler: include_stop_str_in_output keeps the stop", "[server]") {
  AssemblyRules with = rules({"ell"});
  with.include_stop_str_in_output = true;
  const Assembled all = assemble({'x', kHello, 'y'}, with);
  CHECK(all.text == "xhell");
  CHECK(all.stop_string == "ell");
}

TEST_CASE("StreamAssembler: whole characters only; a cut one is dropped and stays in the bytes",
          "[server]") {
  const Assembled all = assemble(byte_tokens("\xF0\x9F\xA7\xAA\xE6\xBC"), rules({}));
  CHECK(all.pieces == std::vector<std::string>{"\xF0\x9F\xA7\xAA"});
  CHECK(all.entry_bytes == "\xF0\x9F\xA7\xAA\xE6\xBC");
  CHECK(all.counted == 6);
  const std::string stop = "\xE6\xBC\xA2";
  CHECK(assemble(byte_tokens("a" + stop + "b"), rules({stop})).text == "a");
}

TEST_CASE("StreamAssembler: an end-of-generation token is counted and adds nothing", "[server]") {
  const Assembled all = assemble({'a', kImEnd}, rules({"ab"}));
  CHECK(all.text == "a");
  CHECK(all.entries == 2);
  CHECK(all.entry_bytes == "a");
  CHECK(all.counted == 2);
  CHECK(!all.stop_token);  // not the request's own
  AssemblyRules spelled = rules({});
  spelled.skip_special_tokens = false;
  CHECK(assemble({kImStart, 'a', kImEnd}, spelled).text == "<|im_start|>a");
  CHECK(assemble({kImStart, 'a', kImEnd}, spelled).entry_bytes == "<|im_start|>a");
}

TEST_CASE("StreamAssembler: the request's own stop token is named and cut", "[server]") {
  AssemblyRules with = rules({});
  with.ending_token_ids = {'b', kImEnd};
  with.own_stop_token_ids = {'b'};
  const Assembled all = assemble(byte_tokens("aab"), with);
  CHECK(all.text == "aa");
  CHECK(all.stop_token == TokenId{'b'});
  with.include_stop_str_in_output = true;
  CHECK(assemble(byte_tokens("aab"), with).text == "aab");
}

TEST_CASE("StreamAssembler: stop strings do not count before min_tokens", "[server]") {
  AssemblyRules with = rules({"a"});
  with.min_tokens = 3;
  CHECK(assemble(byte_tokens("aaaa"), with).text == "aa");
}

TEST_CASE("StreamAssembler: no cut into tokens or polls changes the answer", "[server]") {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    INFO("seed " << seed);
    std::uint64_t state = seed;
    const auto draw = [&state](std::uint64_t below) { return (state = mix64(state)) % below; };
    std::string text;
    for (std::uint64_t i = 0, length = draw(24); i < length; ++i) {
      constexpr std::array<const char*, 5> kPieces = {"a", "b", "\xE6\xBC\xA2", "hello", "ab"};
      text += kPieces[draw(kPieces.size())];
    }
    std::vector<std::string> stops;
    for (std::uint64_t i = 0, count = draw(3); i < count; ++i) {
      constexpr std::array<const char*, 6> kStops = {"aab",
                                                     "bab",
                                                     "\xE6\xBC\xA2"
                                                     "a",
                                                     "lloa",
                                                     "abab",
                                                     "ohel"};
      stops.emplace_back(kStops[draw(kStops.size())]);
    }
    // Reference: one pass over the bytes.
    std::string expected = text;
    std::optional<std::string> expected_stop;
    for (std::size_t end = 0; end <= text.size() && !expected_stop; ++end) {
      for (const std::string& stop : stops) {
        if (!std::string_view(text).substr(0, end).ends_with(stop)) continue;
        if (expected_stop && expected_stop->size() >= stop.size()) continue;
        expected_stop = stop;
      }
      if (expected_stop) expected = text.substr(0, end - expected_stop->size());
    }
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < text.size();) {
      const bool merge = std::string_view(text).substr(i).starts_with("hello") && draw(2) == 0;
      tokens.push_back(merge ? kHello : static_cast<unsigned char>(text[i]));
      i += merge ? 5 : 1;
    }
    const Assembled streamed = assemble(tokens, rules(stops), mix64(seed));
    const Assembled whole = assemble(tokens, rules(stops), 0);
    CHECK(streamed.text == expected);
    CHECK(whole.text == expected);
    CHECK(streamed.stop_string == expected_stop);
    CHECK(streamed.entries == streamed.counted);
    CHECK(whole.entry_bytes == streamed.entry_bytes);
    for (const std::string& piece : streamed.pieces)
      CHECK((static_cast<unsigned char>(piece[0]) & 0xC0U) != 0x80U);
  }
}
