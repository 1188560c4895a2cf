// Members of one JSON object by name and type, with the first failure kept: reads after it do
// nothing. It knows which members were asked for, so that what is left over can be counted.
#pragma once

#include "core/result.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

class FieldReader {
 public:
  /// `object` must outlive the reader. `path` stands before the names in `param` ("messages[2].");
  /// empty at the top.
  explicit FieldReader(const nlohmann::json& object, std::string path = {});

  /// The member, or null when it is absent or null. The name then counts as known.
  [[nodiscard]] const nlohmann::json* find(std::string_view name);

  // Each is empty when the member is absent, null or in error; `expected` stands in the error.
  [[nodiscard]] std::optional<std::string> string(std::string_view name,
                                                  std::string_view expected = "a string");
  /// An integer, or a number with zero fraction, inside int64. Booleans and strings are not
  /// numbers.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name,
                                                    std::string_view expected);
  [[nodiscard]] std::optional<double> number(std::string_view name, std::string_view expected);
  [[nodiscard]] std::optional<bool> boolean(std::string_view name);
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view name,
                                                   std::string_view expected);

  /// Known, and without a say in the answer.
  void accept(std::string_view name) { known_.insert(std::string(name)); }
  /// Known and not built: an error unless absent, null, or `harmless` (the value that asks for
  /// nothing).
  void refuse(std::string_view name, const nlohmann::json& harmless = nullptr);

  void fail(ErrorCode code, std::string message, std::string param);
  void fail_type(const std::string& param, std::string_view expected, const nlohmann::json& value);
  [[nodiscard]] std::string path_of(std::string_view name) const {
    return path_ + std::string(name);
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  /// Members that nobody asked for.
  [[nodiscard]] std::size_t num_ignored() const;

 private:
  const nlohmann::json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
  std::optional<Error> error_;
};

/// See FieldReader::integer.
[[nodiscard]] std::optional<std::int64_t> exact_integer(const nlohmann::json& value);
/// A short name of what a value is, for messages: the number, the string shortened, "a list", ...
[[nodiscard]] std::string shown_json(const nlohmann::json& value);

}  // namespace kvasir::server
