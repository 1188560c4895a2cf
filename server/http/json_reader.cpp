#include "server/http/json_reader.h"

#include "server/shown_value.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvasir::server {
namespace {

using nlohmann::json;

/// Builds the value from the parser's events and ends the parse at the first broken limit. The
/// parser keeps its own stack on the heap, and so does this: no input makes either recurse.
class ValueBuilder final : public nlohmann::json_sax<json> {
 public:
  explicit ValueBuilder(const RequestLimits& limits) : limits_(limits) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*digits*/) override {
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // not in JSON text
  bool start_object(std::size_t /*size*/) override { return open(json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) {
      error_ = Error{ErrorCode::kInvalidJson, "the key " + shown_value(name) + " is given twice",
                     shown_name(name)};
      return false;
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*what*/) override {
    // The library's text quotes the input raw; the position says as much.
    error_ = Error{ErrorCode::kInvalidJson,
                   "the body is not valid JSON (at byte " + std::to_string(position) + ")",
                   {}};
    return false;
  }

  [[nodiscard]] Error error() const {
    return error_.value_or(Error{ErrorCode::kInvalidJson, "the body is not valid JSON", {}});
  }
  [[nodiscard]] json take() { return std::move(root_); }

 private:
  static std::string shown_name(const std::string& name) {
    const std::string shown = shown_value(name);
    return shown.substr(1, shown.size() - 2);
  }

  template <typename Value>
  bool add(Value&& value) {
    return place(json(std::forward<Value>(value))) != nullptr;
  }

  json* place(json value) {
    if (++num_values_ > limits_.json_values) {
      error_ =
          Error{ErrorCode::kInvalidJson,
                "the body has more than " + std::to_string(limits_.json_values) + " JSON values",
                {}};
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[std::move(key_)] = std::move(value));
  }

  bool open(json value) {
    if (open_.size() >= limits_.json_depth) {
      error_ = Error{ErrorCode::kJsonTooDeep,
                     "the body nests deeper than " + std::to_string(limits_.json_depth) + " levels",
                     {}};
      return false;
    }
    json* placed = place(std::move(value));
    if (placed == nullptr) return false;
    open_.push_back(placed);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const RequestLimits& limits_;
  json root_;
  std::vector<json*> open_;  // a container is not moved while something in it is open
  std::string key_;
  std::size_t num_values_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<json> read_json(std::string_view text, const RequestLimits& limits) {
  // The library takes a NUL for the end of its input; in JSON none may stand anywhere.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return fail(ErrorCode::kInvalidJson,
                "the body is not valid JSON (at byte " + std::to_string(nul) + ")");
  }
  ValueBuilder builder(limits);
  if (!json::sax_parse(text.begin(), text.end(), &builder))
    return tl::unexpected<Error>(builder.error());
  json value = builder.take();
  if (!value.is_object()) return fail(ErrorCode::kInvalidJson, "the body must be a JSON object");
  return value;
}

}  // namespace kvasir::server
