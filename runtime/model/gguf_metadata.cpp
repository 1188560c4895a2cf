#include "runtime/model/gguf_metadata.h"

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::runtime {
namespace {

// Bounds well above what real models have, so that a hostile file cannot make us allocate: the
// largest vocabularies have 262 144 pieces and half a million merges.
constexpr std::uint64_t kMaxKeyBytes = 65'535;           // of the GGUF specification
constexpr std::uint64_t kMaxStringBytes = 16ULL << 20;   // chat templates have kilobytes
constexpr std::uint64_t kMaxArrayElements = 2ULL << 20;  // of one array
constexpr std::uint64_t kMaxElementsInAll = 4ULL << 20;  // of all arrays of a file
constexpr std::uint64_t kMinAlignment = 8;
constexpr std::uint64_t kMaxAlignment = 65'536;
constexpr std::string_view kAlignmentKey = "general.alignment";

enum class ValueType : std::uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};
constexpr std::uint32_t kNumValueTypes = 13;

ValueType read_value_type(GgufCursor& cursor, std::string_view field) {
  const std::uint64_t offset = cursor.position();
  const auto type = cursor.read<std::uint32_t>(field);
  if (type >= kNumValueTypes) {
    cursor.refuse(offset, std::string(field) + " is " + std::to_string(type) +
                              ", the types are 0 to " + std::to_string(kNumValueTypes - 1));
  }
  return static_cast<ValueType>(type);
}

bool read_bool(GgufCursor& cursor) {
  const std::uint64_t offset = cursor.position();
  const auto value = cursor.read<std::uint8_t>("the value");
  if (value > 1) {
    cursor.refuse(offset, "the boolean is " + std::to_string(value) + ", 0 and 1 are allowed");
  }
  return value == 1;
}

template <typename Stored, typename Widened>
std::vector<Widened> read_numbers(GgufCursor& cursor, std::uint64_t count) {
  std::vector<Widened> values;
  values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<Widened>(cursor.read<Stored>("an array element")));
  }
  return values;
}

std::vector<bool> read_bools(GgufCursor& cursor, std::uint64_t count) {
  std::vector<bool> values;
  for (std::uint64_t i = 0; i < count; ++i) {
    values.push_back(read_bool(cursor));
  }
  return values;
}

std::vector<std::string> read_strings(GgufCursor& cursor, std::uint64_t count) {
  std::vector<std::string> values;
  values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values.emplace_back(cursor.read_string("an array element", kMaxStringBytes));
  }
  return values;
}

std::uint64_t smallest_bytes(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kString:  // its length
    case ValueType::kArray:
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
  }
  return 8;
}

GgufValue read_array(GgufCursor& cursor, std::uint64_t& elements_in_all) {
  const std::uint64_t type_offset = cursor.position();
  const ValueType type = read_value_type(cursor, "the type of the array's elements");
  if (type == ValueType::kArray) {
    cursor.refuse(type_offset,
                  "an array of arrays, arrays of numbers, booleans and strings are allowed");
  }
  // The count is bounded by the bytes that are left before anything is allocated for it.
  const std::uint64_t count =
      cursor.read_count("the length of the array", kMaxArrayElements, smallest_bytes(type));
  elements_in_all += count;
  if (elements_in_all > kMaxElementsInAll) {
    cursor.refuse(type_offset, "the arrays of the file have more than " +
                                   std::to_string(kMaxElementsInAll) + " elements together");
  }
  switch (type) {
    case ValueType::kUint8:
      return read_numbers<std::uint8_t, std::uint64_t>(cursor, count);
    case ValueType::kInt8:
      return read_numbers<std::int8_t, std::int64_t>(cursor, count);
    case ValueType::kUint16:
      return read_numbers<std::uint16_t, std::uint64_t>(cursor, count);
    case ValueType::kInt16:
      return read_numbers<std::int16_t, std::int64_t>(cursor, count);
    case ValueType::kUint32:
      return read_numbers<std::uint32_t, std::uint64_t>(cursor, count);
    case ValueType::kInt32:
      return read_numbers<std::int32_t, std::int64_t>(cursor, count);
    case ValueType::kUint64:
      return read_numbers<std::uint64_t, std::uint64_t>(cursor, count);
    case ValueType::kInt64:
      return read_numbers<std::int64_t, std::int64_t>(cursor, count);
    case ValueType::kFloat32:
      return read_numbers<float, double>(cursor, count);
    case ValueType::kFloat64:
      return read_numbers<double, double>(cursor, count);
    case ValueType::kBool:
      return read_bools(cursor, count);
    case ValueType::kString:
      return read_strings(cursor, count);
    case ValueType::kArray:
      break;  // refused above
  }
  cursor.refuse(type_offset, "an array of an unknown type");
}

GgufValue read_value(GgufCursor& cursor, ValueType type, std::uint64_t& elements_in_all) {
  constexpr std::string_view kField = "the value";
  switch (type) {
    case ValueType::kUint8:
      return std::uint64_t{cursor.read<std::uint8_t>(kField)};
    case ValueType::kInt8:
      return std::int64_t{cursor.read<std::int8_t>(kField)};
    case ValueType::kUint16:
      return std::uint64_t{cursor.read<std::uint16_t>(kField)};
    case ValueType::kInt16:
      return std::int64_t{cursor.read<std::int16_t>(kField)};
    case ValueType::kUint32:
      return std::uint64_t{cursor.read<std::uint32_t>(kField)};
    case ValueType::kInt32:
      return std::int64_t{cursor.read<std::int32_t>(kField)};
    case ValueType::kUint64:
      return cursor.read<std::uint64_t>(kField);
    case ValueType::kInt64:
      return cursor.read<std::int64_t>(kField);
    case ValueType::kFloat32:
      return double{cursor.read<float>(kField)};
    case ValueType::kFloat64:
      return cursor.read<double>(kField);
    case ValueType::kBool:
      return read_bool(cursor);
    case ValueType::kString:
      return std::string(cursor.read_string(kField, kMaxStringBytes));
    case ValueType::kArray:
      return read_array(cursor, elements_in_all);
  }
  cursor.refuse(cursor.position(), "a value of an unknown type");
}

std::uint64_t checked_alignment(const GgufCursor& cursor, std::uint64_t offset,
                                const GgufValue& value) {
  const auto* alignment = std::get_if<std::uint64_t>(&value);
  if (alignment == nullptr) {
    cursor.refuse(offset, "the value is no unsigned integer");
  }
  if (!std::has_single_bit(*alignment) || *alignment < kMinAlignment ||
      *alignment > kMaxAlignment) {
    cursor.refuse(offset, "the value is " + std::to_string(*alignment) + ", powers of two from " +
                              std::to_string(kMinAlignment) + " to " +
                              std::to_string(kMaxAlignment) + " are allowed");
  }
  return *alignment;
}

}  // namespace

GgufMetadata read_gguf_metadata(GgufCursor& cursor, std::uint64_t num_keys) {
  GgufMetadata metadata;
  std::uint64_t elements_in_all = 0;
  for (std::uint64_t i = 0; i < num_keys; ++i) {
    cursor.set_context("metadata key " + std::to_string(i));
    const std::uint64_t offset = cursor.position();
    const std::string_view key = cursor.read_string("the key", kMaxKeyBytes);
    if (key.empty()) {
      cursor.refuse(offset, "the key is empty");
    }
    cursor.set_context("metadata key " + quoted(key));
    if (!metadata.index.emplace(key, metadata.entries.size()).second) {
      cursor.refuse(offset, "the key is there twice");
    }
    const ValueType type = read_value_type(cursor, "the type of the value");
    const std::uint64_t value_offset = cursor.position();
    metadata.entries.emplace_back(std::string(key), read_value(cursor, type, elements_in_all));
    if (key == kAlignmentKey) {
      metadata.alignment = checked_alignment(cursor, value_offset, metadata.entries.back().second);
    }
  }
  cursor.set_context({});
  return metadata;
}

}  // namespace kvasir::runtime
