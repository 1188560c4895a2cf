// The rows.
#include "server/field_table.h"

#include "core/check.h"
#include "server/kv_plan_rows.h"

#include <algorithm>
#include <initializer_list>

namespace kvasir::server {
namespace {

constexpr std::int64_t kInt32Min = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kWeekMs = 7LL * 24 * 3600 * 1000;
constexpr unsigned kGenerate = kOfCompletions | kOfChat;
constexpr unsigned kEverywhere = kGenerate | kOfTokenize | kOfDetokenize | kOfPlan;
constexpr std::string_view kOnGrpcTheMethod = "the method says whether it streams";
constexpr NumberRange kUnit{0, 1};
constexpr NumberRange kPenalty{-2, 2};

using Rows = std::vector<FieldRow>;
using K = FieldKind;

void add_inputs(Rows& rows) {
  rows.insert(
      rows.end(),
      {{.name = "model",
        .kind = K::kText,
        .users = kEverywhere,
        .member = &RequestFields::model,
        .when_absent = "the served model",
        .meaning = "Served name or alias of the model."},
       {.name = "prompt",
        .kind = K::kPrompts,
        .users = kOfCompletions,
        .member = &CompletionFields::prompts,
        .required = true,
        .most_items = &RequestLimits::prompts,
        .meaning = "One prompt or several, as text (which gets BOS if the model wants it) or as "
                   "token ids (which are taken as they are)."},
       {.name = "messages",
        .kind = K::kMessages,
        .users = kOfChat,
        .member = &ChatFields::messages,
        .required = true,
        .most_items = &RequestLimits::messages,
        .meaning = "The conversation; control tokens spelled in it stay plain text."},
       {.name = "prompt",
        .kind = K::kText,
        .users = kOfTokenize,
        .member = &TokenizeFields::prompt,
        .bytes = ByteRange{0, 1LL << 20U},
        .when_absent = "messages",
        .meaning = "Text to tokenise; this or messages."},
       {.name = "messages",
        .kind = K::kMessages,
        .users = kOfTokenize,
        .member = &TokenizeFields::messages,
        .most_items = &RequestLimits::messages,
        .when_absent = "prompt",
        .meaning = "Conversation to render and tokenise; this or prompt."},
       {.name = "add_special_tokens",
        .kind = K::kSwitch,
        .users = kOfTokenize,
        .member = &TokenizeFields::add_special_tokens,
        .when_absent = true,
        .meaning = "Put BOS in front of a prompt if the model wants it."},
       {.name = "tokens",
        .kind = K::kTokenIds,
        .users = kOfDetokenize,
        .member = &DetokenizeFields::tokens,
        .required = true,
        .most_items = std::int64_t{100'000},
        .meaning = "Token ids to turn into text."}});
}

void add_lengths(Rows& rows) {
  rows.insert(
      rows.end(),
      {{.name = "max_tokens",
        .kind = K::kInteger,
        .users = kOfCompletions,
        .member = &GenerateFields::max_tokens,
        .integers = IntegerRange{.low = 0},
        .when_absent = "16, or what is left of context and budget if less",
        .meaning = "Most tokens to generate for each choice; 0 only with echo."},
       {.name = "max_tokens",
        .kind = K::kInteger,
        .users = kOfChat,
        .member = &GenerateFields::max_tokens,
        .integers = IntegerRange{.low = 1},
        .when_absent = "what is left of context and budget",
        .meaning = "Most tokens to generate for each choice."},
       {.name = "max_completion_tokens",
        .kind = K::kInteger,
        .users = kOfChat,
        .member = &ChatFields::max_completion_tokens,
        .integers = IntegerRange{.low = 1},
        .when_absent = "max_tokens",
        .meaning = "Newer word for max_tokens; both and different are refused."},
       {.name = "min_tokens",
        .kind = K::kInteger,
        .users = kGenerate,
        .member = &GenerateFields::min_tokens,
        .integers = IntegerRange{.low = 0},
        .when_absent = std::int64_t{0},
        .meaning = "Stop tokens are banned before so many were generated, and stop strings count "
                   "only in text "
                   "of that token and later ones; at most max_tokens."},
       {.name = "n",
        .kind = K::kInteger,
        .users = kGenerate,
        .member = &GenerateFields::n,
        .integers = IntegerRange{1, &RequestLimits::choices},
        .when_absent = std::int64_t{1},
        .meaning = "Choices for each prompt; the bound holds for n times the prompts too."}});
}

void add_sampling(Rows& rows) {
  rows.insert(
      rows.end(),
      {{.name = "temperature",
        .kind = K::kNumber,
        .users = kGenerate,
        .member = &GenerateFields::temperature,
        .numbers = NumberRange{0, 2},
        .when_absent = 1.0,
        .meaning = "Divides the logits; 0 is greedy."},
       {.name = "top_p",
        .kind = K::kNumber,
        .users = kGenerate,
        .member = &GenerateFields::top_p,
        .numbers = kUnit,
        .when_absent = 1.0,
        .meaning = "Samples from the best tokens that make up so much probability; 0 is the best "
                   "token alone."},
       {.name = "top_k",
        .kind = K::kInteger,
        .users = kGenerate,
        .member = &GenerateFields::top_k,
        .integers = IntegerRange{-1, kInt32Max},
        .when_absent = std::int64_t{0},
        .meaning = "Samples from so many best tokens; 0 and -1 are off."},
       {.name = "min_p",
        .kind = K::kNumber,
        .users = kGenerate,
        .member = &GenerateFields::min_p,
        .numbers = kUnit,
        .when_absent = 0.0,
        .meaning = "Leaves out tokens less probable than so much of the best one's probability."},
       {.name = "presence_penalty",
        .kind = K::kNumber,
        .users = kGenerate,
        .member = &GenerateFields::presence_penalty,
        .numbers = kPenalty,
        .when_absent = 0.0,
        .meaning = "Taken from the logit of each token that was generated before."},
       {.name = "frequency_penalty",
        .kind = K::kNumber,
        .users = kGenerate,
        .member = &GenerateFields::frequency_penalty,
        .numbers = kPenalty,
        .when_absent = 0.0,
        .meaning = "Taken from a token's logit once for each time that it was generated."},
       {.name = "repetition_penalty",
        .kind = K::kNumber,
        .users = kGenerate,
        .member = &GenerateFields::repetition_penalty,
        .numbers = NumberRange{0, 10, true},
        .when_absent = 1.0,
        .meaning = "Divides positive and multiplies negative logits of tokens in the prompt or "
                   "generated; 1 is off."},
       {.name = "logit_bias",
        .kind = K::kBiases,
        .users = kGenerate,
        .member = &GenerateFields::logit_bias,
        .numbers = NumberRange{-100, 100},
        .most_items = std::int64_t{1024},
        .when_absent = "none",
        .meaning = "Added to the logits of tokens, by id."},
       {.name = "seed",
        .kind = K::kInteger,
        .users = kGenerate,
        .member = &GenerateFields::seed,
        .integers = IntegerRange{},
        .when_absent = "drawn by the server",
        .meaning = "The same seed, model, fields and prompt give the same text."}});
}

void add_stops(Rows& rows) {
  rows.insert(rows.end(), {{.name = "stop",
                            .kind = K::kTexts,
                            .users = kGenerate,
                            .member = &GenerateFields::stop,
                            .most_items = &RequestLimits::stop_strings,
                            .bytes = ByteRange{1, &RequestLimits::stop_bytes},
                            .when_absent = "none",
                            .meaning = "A choice ends before the first of these strings."},
                           {.name = "stop_token_ids",
                            .kind = K::kTokenIds,
                            .users = kGenerate,
                            .member = &GenerateFields::stop_token_ids,
                            .most_items = std::int64_t{256},
                            .when_absent = "none",
                            .meaning = "A choice ends with any of these tokens."},
                           {.name = "ignore_eos",
                            .kind = K::kSwitch,
                            .users = kGenerate,
                            .member = &GenerateFields::ignore_eos,
                            .when_absent = false,
                            .meaning = "Go on past end-of-generation tokens."},
                           {.name = "include_stop_str_in_output",
                            .kind = K::kSwitch,
                            .users = kGenerate,
                            .member = &GenerateFields::include_stop_str_in_output,
                            .when_absent = false,
                            .meaning = "Keep the matched stop string in the text."},
                           {.name = "skip_special_tokens",
                            .kind = K::kSwitch,
                            .users = kGenerate,
                            .member = &GenerateFields::skip_special_tokens,
                            .when_absent = true,
                            .meaning = "Leave control tokens out of the text."}});
}

void add_answer(Rows& rows) {
  constexpr IntegerRange kTopLogprobs{0, std::int64_t{20}};
  rows.insert(
      rows.end(),
      {{.name = "logprobs",
        .kind = K::kInteger,
        .users = kOfCompletions,
        .member = &CompletionFields::logprobs,
        .integers = kTopLogprobs,
        .when_absent = "no logprobs",
        .meaning = "Return the logprob of each token and of so many best ones beside it."},
       {.name = "logprobs",
        .kind = K::kSwitch,
        .users = kOfChat,
        .member = &ChatFields::logprobs,
        .when_absent = false,
        .meaning = "Return the logprob of each token."},
       {.name = "top_logprobs",
        .kind = K::kInteger,
        .users = kOfChat,
        .member = &ChatFields::top_logprobs,
        .integers = kTopLogprobs,
        .when_absent = std::int64_t{0},
        .meaning = "So many best tokens beside each one; needs logprobs."},
       {.name = "prompt_logprobs",
        .kind = K::kInteger,
        .users = kGenerate,
        .member = &GenerateFields::prompt_logprobs,
        .integers = kTopLogprobs,
        .when_absent = "none",
        .meaning = "Return the logprob and rank of each prompt token but the first, and so many "
                   "best tokens beside it."},
       {.name = "echo",
        .kind = K::kSwitch,
        .users = kOfCompletions,
        .member = &CompletionFields::echo,
        .when_absent = false,
        .meaning = "The prompt comes first in the text, and in the logprobs."},
       {.name = "return_token_ids",
        .kind = K::kSwitch,
        .users = kGenerate,
        .member = &GenerateFields::return_token_ids,
        .when_absent = false,
        .meaning = "Return the ids of prompt and generated tokens; on gRPC the default is true."},
       {.name = "kv_receipt",
        .kind = K::kSwitch,
        .users = kGenerate,
        .member = &GenerateFields::kv_receipt,
        .when_absent = "as --kv-receipt says",
        .meaning = "Return what the answer cost in keys and values, as usage.kv_cache; on gRPC the "
                   "default is true."},
       {.name = "stream",
        .kind = K::kSwitch,
        .users = kGenerate,
        .member = &GenerateFields::stream,
        .when_absent = false,
        .meaning = "Answer in pieces, as server-sent events.",
        .not_on_grpc = kOnGrpcTheMethod},
       {.name = "stream_options",
        .kind = K::kOptions,
        .users = kGenerate,
        .member = &GenerateFields::has_stream_options,
        .when_absent = "none",
        .meaning = "Only with stream.",
        .not_on_grpc = kOnGrpcTheMethod},
       {.name = "stream_options.include_usage",
        .kind = K::kSwitch,
        .users = kGenerate,
        .member = &GenerateFields::include_usage,
        .when_absent = false,
        .meaning = "One more chunk at the end, with the usage.",
        .not_on_grpc = "the last chunk always has the usage"},
       {.name = "stream_options.continuous_usage_stats",
        .kind = K::kSwitch,
        .users = kGenerate,
        .member = &GenerateFields::continuous_usage_stats,
        .when_absent = false,
        .meaning = "The usage so far in every chunk.",
        .not_on_grpc = "the last chunk has the usage"}});
}

void add_service(Rows& rows) {
  rows.insert(
      rows.end(),
      {{.name = "chat_template_kwargs",
        .kind = K::kObject,
        .users = kOfChat,
        .member = &ChatFields::template_kwargs,
        .bytes = ByteRange{0, 64LL << 10U},
        .when_absent = "none",
        .meaning = "Variables for the chat template; only names that the operator listed "
                   "(--chat-template-kwargs)."},
       {.name = "priority",
        .kind = K::kInteger,
        .users = kGenerate,
        .member = &GenerateFields::priority,
        .integers = IntegerRange{kInt32Min, kInt32Max},
        .when_absent = std::int64_t{0},
        .meaning = "Lower is served first."},
       {.name = "timeout_ms",
        .kind = K::kInteger,
        .users = kGenerate,
        .member = &GenerateFields::timeout_ms,
        .integers = IntegerRange{1, kWeekMs},
        .when_absent = "none",
        .meaning = "Milliseconds from the request's arrival after which it is given up; a gRPC "
                   "call's deadline counts too."},
       {.name = "cache_salt",
        .kind = K::kText,
        .users = kGenerate,
        .member = &GenerateFields::cache_salt,
        .bytes = ByteRange{1, 1024},
        .when_absent = "none",
        .meaning = "Equal prefixes under other salts share no cached keys and values."}});
}

void add_accepted(Rows& rows) {
  struct Accepted {
    std::string_view name;
    std::string_view meaning;
  };
  for (const Accepted& field : std::initializer_list<Accepted>{
           {"user", "The client's name for its user."},
           {"metadata", "The client's own labels."},
           {"store", "Whether a hosted service keeps the answer; nothing is kept here."},
           {"service_tier", "A hosted service's price class."},
           {"safety_identifier", "The client's name for its user."},
           {"prompt_cache_key", "A hint to hosted caches; every prefix is cached here."},
           {"prompt_cache_retention", "A hint to hosted caches."},
           {"prediction", "Text that the client expects, for a hosted service's speed."},
           {"parallel_tool_calls", "Says something only with tools."},
           {"request_id", "The client's name for the request."}}) {
    rows.push_back({.name = field.name,
                    .users = kGenerate,
                    .standing = FieldStanding::kAccepted,
                    .meaning = field.meaning,
                    .not_on_grpc = "it has no say"});
  }
}

void add_refused(Rows& rows) {
  struct Refused {
    std::string_view name;
    unsigned users;
    std::string_view harmless;
    std::string_view meaning;
  };
  constexpr unsigned kRendered = kGenerate | kOfTokenize;
  for (const Refused& field : std::initializer_list<Refused>{
           {"suffix", kGenerate, R"("")", "Text behind the gap to fill."},
           {"best_of", kGenerate, "1", "Generate more choices than are returned."},
           {"echo", kOfChat, "false", "The prompt comes first in the text."},
           {"chat_template_kwargs", kOfCompletions | kOfTokenize, "{}", "Template variables."},
           {"max_completion_tokens", kOfCompletions, "null", "Chat's word for max_tokens."},
           {"top_logprobs", kOfCompletions, "null", "Chat's number of best tokens."},
           {"chat_template", kRendered, "null", "Templates come from the operator only."},
           {"add_generation_prompt", kRendered, "true", "Whether the assistant's turn is opened."},
           {"continue_final_message", kGenerate, "false", "Go on with the last message."},
           {"tools", kRendered, "null", "Functions that the model may call."},
           {"tool_choice", kGenerate, R"("none")", "Which function to call."},
           {"functions", kGenerate, "null", "Older word for tools."},
           {"function_call", kGenerate, R"("none")", "Older word for tool_choice."},
           {"response_format", kGenerate, R"({"type":"text"})", "Form of the answer."},
           {"structured_outputs", kGenerate, "null", "Form of the answer."},
           {"guided_json", kGenerate, "null", "Form of the answer."},
           {"guided_regex", kGenerate, "null", "Form of the answer."},
           {"guided_choice", kGenerate, "null", "Form of the answer."},
           {"guided_grammar", kGenerate, "null", "Form of the answer."},
           {"grammar", kGenerate, "null", "Form of the answer."},
           {"json_schema", kGenerate, "null", "Form of the answer."},
           {"modalities", kGenerate, R"(["text"])", "Kinds of output."},
           {"audio", kGenerate, "null", "Voice and format of spoken output."},
           {"web_search_options", kGenerate, "null", "Search the web for the answer."},
           {"prompt_embeds", kGenerate, "null", "Prompts as embeddings."},
           {"documents", kGenerate, "null", "Documents for the chat template."},
           {"mm_processor_kwargs", kGenerate, "null", "Settings of image and sound input."},
           {"reasoning_effort", kGenerate, "null", "How long to think."},
           {"thinking_token_budget", kGenerate, "null", "How long to think."},
           {"verbosity", kGenerate, "null", "How long the answer shall be."},
           {"truncate_prompt_tokens", kGenerate, "null", "Cut a prompt that is too long."},
           {"allowed_token_ids", kGenerate, "null", "The only tokens to sample from."},
           {"bad_words", kGenerate, "[]", "Words never to generate."},
           {"logits_processors", kGenerate, "null", "Code to run on the logits."},
           {"use_beam_search", kGenerate, "false", "Search in place of sampling."},
           {"length_penalty", kGenerate, "1.0", "Of a beam search."},
           {"mirostat", kGenerate, "null", "Another way to sample."},
           {"typical_p", kGenerate, "null", "Another way to sample."},
           {"samplers", kGenerate, "null", "Order of sampling steps."},
           {"dry_multiplier", kGenerate, "null", "Another penalty for repetition."},
           {"xtc_probability", kGenerate, "null", "Leave out the best tokens."},
           {"n_probs", kGenerate, "null", "Another word for logprobs."},
           {"lora", kGenerate, "null", "Adapters to apply."},
           {"return_tokens_as_token_ids", kGenerate, "false", "Print tokens as ids in logprobs."},
           {"return_token_strs", kOfTokenize, "false", "Print tokens beside their ids."}}) {
    rows.push_back({.name = field.name,
                    .users = field.users,
                    .standing = FieldStanding::kRefused,
                    .harmless = field.harmless,
                    .meaning = field.meaning,
                    .not_on_grpc = "it is not supported"});
  }
}

Rows make_table() {
  Rows rows;
  add_inputs(rows);
  add_lengths(rows);
  add_sampling(rows);
  add_stops(rows);
  add_answer(rows);
  add_service(rows);
  add_plan_rows(rows);
  add_accepted(rows);
  add_refused(rows);
  return rows;
}

}  // namespace

std::span<const FieldRow> field_table() {
  static const Rows rows = make_table();
  return rows;
}

std::int64_t value_of(const Bound& bound, const RequestLimits& limits) {
  if (const auto* fixed = std::get_if<std::int64_t>(&bound)) return *fixed;
  if (const auto* count = std::get_if<std::size_t RequestLimits::*>(&bound))
    return static_cast<std::int64_t>(limits.**count);
  return limits.*std::get<std::int64_t RequestLimits::*>(bound);
}

const FieldRow& row_of(const FieldMember& member) {
  const std::span<const FieldRow> rows = field_table();
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const FieldRow& row) { return row.member == member; });
  KVASIR_CHECK(found != rows.end(), "a member without a row");
  return *found;
}

}  // namespace kvasir::server
