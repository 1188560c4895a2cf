#include "runtime/model/metadata_reader.h"

#include "runtime/model/printable.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::runtime {
namespace {

constexpr std::size_t kMaxShownPathBytes = 400;

// A single number, or the one that all entries of an array share.
template <typename T>
std::optional<std::uint64_t> uniform_value(const std::vector<T>& values) {
  const bool uniform = !values.empty() && std::all_of(values.begin(), values.end(),
                                                      [&](T value) { return value == values[0]; });
  if (!uniform || values[0] < T{0}) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(values[0]);
}

}  // namespace

MetadataReader::MetadataReader(const GgufFile& file, std::string architecture)
    : file_(file), architecture_(std::move(architecture)) {}

std::string MetadataReader::key(std::string_view name) const {
  return architecture_ + '.' + std::string(name);
}

std::optional<std::string_view> MetadataReader::text(std::string_view full_key) const {
  const auto value = file_.find_string(full_key);
  if (!value && file_.find(full_key) != nullptr) {
    refuse(full_key, "is no string");
  }
  return value;
}

std::optional<bool> MetadataReader::boolean(std::string_view full_key) const {
  const auto value = file_.find_bool(full_key);
  if (!value && file_.find(full_key) != nullptr) {
    refuse(full_key, "is no boolean");
  }
  return value;
}

std::optional<std::uint64_t> MetadataReader::unsigned_integer(std::string_view full_key) const {
  const auto value = file_.find_uint(full_key);
  if (!value && file_.find(full_key) != nullptr) {
    refuse(full_key, "is no unsigned integer");
  }
  return value;
}

std::optional<double> MetadataReader::number(std::string_view full_key) const {
  std::optional<double> value = file_.find_float(full_key);
  if (!value && file_.find(full_key) != nullptr) {
    const auto integer = file_.find_uint(full_key);
    if (!integer) {
      refuse(full_key, "is no number");
    }
    value = static_cast<double>(*integer);
  }
  if (value && !std::isfinite(*value)) {
    refuse(full_key, "is not finite");
  }
  return value;
}

std::optional<std::uint32_t> MetadataReader::optional_size(std::string_view name,
                                                           std::uint64_t max) const {
  const std::string full_key = key(name);
  const GgufValue* value = file_.find(full_key);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::optional<std::uint64_t> size;
  if (const auto* unsigned_values = std::get_if<std::vector<std::uint64_t>>(value)) {
    size = uniform_value(*unsigned_values);
  } else if (const auto* signed_values = std::get_if<std::vector<std::int64_t>>(value)) {
    size = uniform_value(*signed_values);
  } else {
    size = unsigned_integer(full_key);
  }
  if (!size) {
    refuse(full_key,
           "is an array whose entries differ: layers of different sizes are not supported");
  }
  if (*size < 1 || *size > max) {
    refuse(full_key,
           "is " + std::to_string(*size) + ", 1 to " + std::to_string(max) + " are allowed");
  }
  return static_cast<std::uint32_t>(*size);
}

std::uint32_t MetadataReader::required_size(std::string_view name, std::uint64_t max) const {
  const std::optional<std::uint32_t> size = optional_size(name, max);
  if (!size) {
    refuse(key(name), "is missing");
  }
  return *size;
}

void MetadataReader::refuse(std::string_view full_key, const std::string& why) const {
  throw MetadataRefused{printable(file_.path(), kMaxShownPathBytes) + ": metadata key \"" +
                        printable(full_key) + "\" " + why};
}

void MetadataReader::refuse_tensor(std::string_view name, const std::string& why) const {
  throw MetadataRefused{printable(file_.path(), kMaxShownPathBytes) + ": tensor \"" +
                        printable(name) + "\" " + why};
}

}  // namespace kvasir::runtime
