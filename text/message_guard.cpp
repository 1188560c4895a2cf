#include "text/message_guard.h"

#include <algorithm>
#include <utility>

namespace kvasir::text {

namespace {

// Planes 15 and 16 are private use: no text means anything by them, and no case mapping, trimming
// or composition touches them. All take four bytes, the first of which nothing else begins with.
constexpr char32_t kLastPrivateLetter = 0x10FFFD;
constexpr std::size_t kPrivateLetterBytes = 4;

bool begins_private_letter(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (text.size() < kPrivateLetterBytes) {
    return false;
  }
  // F3 B0 80 80 is U+F0000; F4 begins the rest, up to U+10FFFF.
  return lead == 0xF4 || (lead == 0xF3 && static_cast<unsigned char>(text[1]) >= 0xB0);
}

std::string four_bytes(char32_t letter) {
  const auto continuation = [&](unsigned shift) {
    return static_cast<char>(0x80U | ((letter >> shift) & 0x3FU));
  };
  return {static_cast<char>(0xF0U | (letter >> 18U)), continuation(12), continuation(6),
          continuation(0)};
}

bool is_boundary(std::string_view text, std::size_t position) {
  return position >= text.size() || (static_cast<unsigned char>(text[position]) & 0xC0U) != 0x80U;
}

std::size_t first_letter_bytes(std::string_view text) {
  std::size_t size = 1;
  while (!is_boundary(text, size)) {
    ++size;
  }
  return size;
}

std::size_t last_letter_bytes(std::string_view text) {
  std::size_t size = 1;
  while (!is_boundary(text, text.size() - size)) {
    ++size;
  }
  return size;
}

constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

}  // namespace

ControlParts::ControlParts(const Tokenizer& tokenizer) {
  for (TokenId token = 0; token < tokenizer.vocabulary_size(); ++token) {
    if (!tokenizer.is_control(token)) {
      continue;
    }
    const std::string_view spelling = tokenizer.token_bytes_with_special(token);
    longest_bytes_ = std::max(longest_bytes_, spelling.size());
    for (std::size_t cut = 1; cut < spelling.size(); ++cut) {
      if (is_boundary(spelling, cut)) {
        beginnings_.emplace(spelling.substr(0, cut));
        endings_.emplace(spelling.substr(cut));
      }
    }
    const std::size_t first = spelling.empty() ? 0 : first_letter_bytes(spelling);
    const std::size_t last = spelling.empty() ? 0 : last_letter_bytes(spelling);
    if (first + last < spelling.size()) {
      middles_.emplace(spelling.substr(first, spelling.size() - first - last));
    }
  }
}

bool ControlParts::may_end_at_start(std::string_view text) const {
  for (std::size_t size = 1; size < longest_bytes_ && size <= text.size(); ++size) {
    if (endings_.contains(std::string(text.substr(0, size)))) {
      return true;
    }
  }
  return false;
}

bool ControlParts::may_begin_at_end(std::string_view text) const {
  for (std::size_t size = 1; size < longest_bytes_ && size <= text.size(); ++size) {
    if (beginnings_.contains(std::string(text.substr(text.size() - size)))) {
      return true;
    }
  }
  return false;
}

bool ControlParts::may_lie_within(std::string_view text) const {
  return !text.empty() && text.size() < longest_bytes_ &&
         std::any_of(middles_.begin(), middles_.end(), [&](const std::string& middle) {
           return middle.find(text) != std::string::npos;
         });
}

void MessageGuard::reserve(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begins_private_letter(text.substr(i))) {
      taken_.emplace(text.substr(i, kPrivateLetterBytes));
    }
  }
}

Result<std::string> MessageGuard::letter_for(std::string_view original) {
  const std::string key(original);
  if (const auto known = letter_of_.find(key); known != letter_of_.end()) {
    return known->second;
  }
  while (next_letter_ <= kLastPrivateLetter) {
    std::string letter = four_bytes(next_letter_++);
    if (!taken_.contains(letter)) {
      letter_of_.emplace(key, letter);
      original_of_.emplace(letter, key);
      return letter;
    }
  }
  return fail(
      ErrorCode::kInvalidTemplateInput,
      "the messages use every private-use character of Unicode and a control token's spelling",
      "messages");
}

Result<std::string> MessageGuard::guard_spellings(std::string_view text) {
  const auto found = tokenizer_.find_control(text);
  if (!found) {
    return tl::unexpected(found.error());
  }
  std::string guarded;
  std::size_t position = 0;
  for (const ControlSpelling& control : *found) {
    const auto letter = letter_for(text.substr(control.offset_bytes, control.size_bytes));
    if (!letter) {
      return letter;
    }
    guarded += text.substr(position, control.offset_bytes - position);
    guarded += *letter;
    position = control.offset_bytes + control.size_bytes;
  }
  guarded += text.substr(position);
  return guarded;
}

Result<std::string> MessageGuard::guard(std::string_view text) {
  return guard_text(text, /*may_lie_within=*/false);
}

Result<std::string> MessageGuard::guard_variable(std::string_view text) {
  return guard_text(text, /*may_lie_within=*/true);
}

Result<std::string> MessageGuard::guard_text(std::string_view text, bool may_lie_within) {
  auto guarded = guard_spellings(text);
  if (!guarded) {
    return guarded;
  }
  const std::size_t begin = guarded->find_first_not_of(kWhiteSpace);
  if (begin == std::string::npos) {
    return guarded;
  }
  const std::size_t end = guarded->find_last_not_of(kWhiteSpace) + 1;
  const std::string body = guarded->substr(begin, end - begin);
  // The end first, so that the offset of the start stays true.
  if (parts_.may_begin_at_end(body)) {
    const std::size_t size = last_letter_bytes(body);
    const auto letter = letter_for(std::string_view(body).substr(body.size() - size));
    if (!letter) {
      return letter;
    }
    guarded->replace(end - size, size, *letter);
  }
  const bool only_letter = body.size() == first_letter_bytes(body);
  const bool replaced = only_letter && parts_.may_begin_at_end(body);
  const bool completes =
      parts_.may_end_at_start(body) || (!may_lie_within && parts_.may_lie_within(body));
  if (!replaced && completes) {
    const std::size_t size = first_letter_bytes(body);
    const auto letter = letter_for(std::string_view(body).substr(0, size));
    if (!letter) {
      return letter;
    }
    guarded->replace(begin, size, *letter);
  }
  return guarded;
}

std::string MessageGuard::restore(std::string_view rendered) const {
  std::string text;
  for (std::size_t i = 0; i < rendered.size();) {
    if (begins_private_letter(rendered.substr(i))) {
      const std::string letter(rendered.substr(i, kPrivateLetterBytes));
      const auto original = original_of_.find(letter);
      text += original == original_of_.end() ? letter : original->second;
      i += kPrivateLetterBytes;
    } else {
      text.push_back(rendered[i++]);
    }
  }
  return text;
}

}  // namespace kvasir::text
