// JSON text, appended member by member without a tree in between: what a stream's chunks need. The
// caller keeps the order right (a key before each member's value); commas and escapes are made
// here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir::server {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);
  /// `text` must be UTF-8.
  JsonWriter& string(std::string_view text);
  JsonWriter& integer(std::int64_t number);
  JsonWriter& unsigned_integer(std::uint64_t number);
  /// The shortest decimal that gives the same double back. Must be finite.
  JsonWriter& number(double number);
  /// A natural logprob as the shortest decimal that gives the same float back, never above 0;
  /// -9999.0 where the probability is 0.
  JsonWriter& logprob(float number);
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  JsonWriter& member(std::string_view name, std::string_view text) {
    return key(name).string(text);
  }
  JsonWriter& member(std::string_view name, std::uint64_t number) {
    return key(name).unsigned_integer(number);
  }

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void separate();
  void append(std::string_view value);

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace kvasir::server
