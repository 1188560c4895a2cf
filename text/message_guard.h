// Keeps message text data: control tokens spelled in it, and ends of it that could become one
// beside the template's own text, travel through the template as private letters and come back
// afterwards. It neither renders nor tokenises.
#pragma once

#include "core/result.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace kvasir::text {

/// The parts of control-token spellings; built once for a vocabulary.
class ControlParts {
 public:
  explicit ControlParts(const Tokenizer& tokenizer);

  /// Whether text in front of `text` could complete a control token at its start.
  [[nodiscard]] bool may_end_at_start(std::string_view text) const;
  /// Whether text behind `text` could complete a control token at its end.
  [[nodiscard]] bool may_begin_at_end(std::string_view text) const;
  /// Whether `text` as a whole lies within a control token, touching neither of its ends.
  [[nodiscard]] bool may_lie_within(std::string_view text) const;

 private:
  std::unordered_set<std::string> beginnings_;  // proper prefixes of the spellings
  std::unordered_set<std::string> endings_;     // proper suffixes
  std::unordered_set<std::string> middles_;  // what is left without the first and the last letters
  std::size_t longest_bytes_ = 0;
};

/// The private letters of one rendering.
class MessageGuard {
 public:
  MessageGuard(const Tokenizer& tokenizer, const ControlParts& parts)
      : tokenizer_(tokenizer), parts_(parts) {}

  /// Letters that occur in `text` stand for themselves. To be called for every text that takes
  /// part, before `guard`.
  void reserve(std::string_view text);
  /// `text` with private letters for what must not become a control token; unchanged when there is
  /// nothing of that. White space at its ends may be trimmed by the template, so the ends are
  /// judged without it. Errors: kInvalidTemplateInput when the text leaves no private letter,
  /// kInternal when it is not UTF-8.
  [[nodiscard]] Result<std::string> guard(std::string_view text);
  /// As guard, but text that lies within a control token stays as it is, for variables: templates
  /// compare them with words ("on", "end"), and what could complete such a word to a control token
  /// is the template's own text, or text whose end is guarded.
  [[nodiscard]] Result<std::string> guard_variable(std::string_view text);
  /// Only the spellings of whole control tokens; for roles, of which templates make control tokens
  /// themselves.
  [[nodiscard]] Result<std::string> guard_spellings(std::string_view text);
  /// Puts back what the private letters of `rendered` stand for.
  [[nodiscard]] std::string restore(std::string_view rendered) const;

 private:
  [[nodiscard]] Result<std::string> guard_text(std::string_view text, bool may_lie_within);
  [[nodiscard]] Result<std::string> letter_for(std::string_view original);

  const Tokenizer& tokenizer_;
  const ControlParts& parts_;
  std::unordered_set<std::string> taken_;  // private letters in the texts themselves
  std::unordered_map<std::string, std::string> letter_of_;    // by what it stands for
  std::unordered_map<std::string, std::string> original_of_;  // by letter
  char32_t next_letter_ = 0xF0000;
};

}  // namespace kvasir::text
