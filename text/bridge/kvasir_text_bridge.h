// The C ABI of text/bridge: tokenizers and chat templates of the Rust crates `tokenizers` and
// `minijinja`. It moves bytes and ids only; what they mean to kvasir is decided in text/tokenizer
// and text/chat_template. No panic crosses it: every function catches, and reports
// kKvasirTextInternal.
#ifndef KVASIR_TEXT_BRIDGE_H
#define KVASIR_TEXT_BRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// What a call came to. Everything but kKvasirTextOk leaves a message in `error`.
typedef enum kvasir_text_status {
  kKvasirTextOk = 0,
  kKvasirTextInvalid = 1,  // the vocabulary, template or context is at fault
  kKvasirTextRaised = 2,   // the template called raise_exception; the message is its argument
  kKvasirTextLimit = 3,    // steps or output size used up; too much white space in a row
  kKvasirTextInternal = 4  // a panic or a failure inside a library
} kvasir_text_status;

/// Borrowed bytes; `data` may be null when `size` is 0.
typedef struct kvasir_text_view {
  const uint8_t* data;
  size_t size;
} kvasir_text_view;

/// Bytes owned by the bridge: free with kvasir_text_bytes_free. Always written by the call that
/// takes one.
typedef struct kvasir_text_bytes {
  uint8_t* data;
  size_t size;
} kvasir_text_bytes;

/// Ids owned by the bridge: free with kvasir_text_ids_free.
typedef struct kvasir_text_ids {
  uint32_t* data;
  size_t size;
} kvasir_text_ids;

/// One control token found in a text: bytes [offset, offset + size) spell token `id`.
typedef struct kvasir_text_match {
  size_t offset;
  size_t size;
  uint32_t id;
} kvasir_text_match;

/// Matches owned by the bridge, ascending and disjoint: free with kvasir_text_matches_free.
typedef struct kvasir_text_matches {
  kvasir_text_match* data;
  size_t size;
} kvasir_text_matches;

/// A vocabulary as the model file has it; read during the call only.
typedef struct kvasir_text_vocabulary {
  kvasir_text_view
      model;  // "gpt2": byte-level BPE by merges; "llama": SPM by scores with byte fallback
  kvasir_text_view pre_tokenizer;  // "gpt2" only
  const kvasir_text_view* tokens;  // [num_tokens], UTF-8
  const float* scores;             // [num_tokens]; null for "gpt2"
  const uint8_t* types;            // [num_tokens], the numbers of GGUF's token types
  size_t num_tokens;
  const kvasir_text_view* merges;  // [num_merges], "left right"; "gpt2" only
  size_t num_merges;
  bool add_space_prefix;  // "llama" only
} kvasir_text_vocabulary;

typedef struct kvasir_text_tokenizer kvasir_text_tokenizer;
typedef struct kvasir_text_template kvasir_text_template;

void kvasir_text_bytes_free(kvasir_text_bytes bytes);
void kvasir_text_ids_free(kvasir_text_ids ids);
void kvasir_text_matches_free(kvasir_text_matches matches);

/// Builds a tokenizer. `*tokenizer` is null unless the status is kKvasirTextOk; free with
/// kvasir_text_tokenizer_free.
kvasir_text_status kvasir_text_tokenizer_create(const kvasir_text_vocabulary* vocabulary,
                                                kvasir_text_tokenizer** tokenizer,
                                                kvasir_text_bytes* error);
void kvasir_text_tokenizer_free(kvasir_text_tokenizer* tokenizer);

/// Appends nothing and recognises no control token: user-defined pieces, then merges. Any thread.
kvasir_text_status kvasir_text_tokenizer_encode(const kvasir_text_tokenizer* tokenizer,
                                                kvasir_text_view text, kvasir_text_ids* ids,
                                                kvasir_text_bytes* error);

/// Finds the spellings of control tokens, leftmost first and the longest of those. Any thread.
kvasir_text_status kvasir_text_tokenizer_find_control(const kvasir_text_tokenizer* tokenizer,
                                                      kvasir_text_view text,
                                                      kvasir_text_matches* matches,
                                                      kvasir_text_bytes* error);

/// What one rendering may use.
typedef struct kvasir_text_render_limits {
  uint64_t max_steps;  // minijinja's fuel: instructions, items and bytes handled count
  size_t max_output_bytes;
} kvasir_text_render_limits;

/// Parses a chat template of at most 64 KiB on a thread with a stack of its own size.
/// `*chat_template` is null unless the status is kKvasirTextOk; free with
/// kvasir_text_template_free.
kvasir_text_status kvasir_text_template_create(kvasir_text_view source,
                                               kvasir_text_render_limits limits,
                                               kvasir_text_template** chat_template,
                                               kvasir_text_bytes* error);
void kvasir_text_template_free(kvasir_text_template* chat_template);

/// Whether templates know a function of that name, which no variable may shadow. Any thread.
bool kvasir_text_template_has_function(const kvasir_text_template* chat_template,
                                       kvasir_text_view name);

/// Renders with the variables of the JSON object `context`; `now` is what strftime_now sees,
/// "YYYY-MM-DDTHH:MM:SS". Runs on a thread of its own, so concurrent calls for one template do not
/// disturb each other.
kvasir_text_status kvasir_text_template_render(const kvasir_text_template* chat_template,
                                               kvasir_text_view context, kvasir_text_view now,
                                               kvasir_text_bytes* output, kvasir_text_bytes* error);

/// For tests: panics inside the bridge and returns what an entry point makes of it.
kvasir_text_status kvasir_text_panic_for_test(kvasir_text_bytes* error);

#ifdef __cplusplus
}
#endif

#endif  // KVASIR_TEXT_BRIDGE_H
