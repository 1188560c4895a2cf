#include "runtime/model/gguf_reader.h"

#include "runtime/model/mapped_file.h"
#include "runtime/model/printable.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::runtime {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF fields are copied as they are");

// Bounds well above what real models have, so that a hostile file cannot make us allocate: the
// largest vocabularies have 262 144 pieces and half a million merges, the largest models a few
// thousand tensors.
constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxTensors = 65'536;
constexpr std::uint64_t kMaxKeyBytes = 65'535;           // of the GGUF specification
constexpr std::uint64_t kMaxTensorNameBytes = 63;        // 64 with its final NUL in ggml
constexpr std::uint64_t kMaxStringBytes = 16ULL << 20;   // chat templates have kilobytes
constexpr std::uint64_t kMaxArrayElements = 2ULL << 20;  // of one array
constexpr std::uint64_t kMaxElementsInAll = 4ULL << 20;  // of all arrays of a file
constexpr std::uint64_t kMinAlignment = 8;
constexpr std::uint64_t kMaxAlignment = 65'536;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint32_t kMaxDims = 4;

// The smallest entries: key length, one byte of key, type, one byte of value; name length, one byte
// of name, number of dimensions, one dimension, type, offset.
constexpr std::uint64_t kMinKeyEntryBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorEntryBytes = 8 + 1 + 4 + 8 + 4 + 8;

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

/// Thrown inside this file only and caught in GgufFile::open.
struct Refused {
  std::uint64_t offset = 0;
  std::string what;
};

std::string quoted(std::string_view text) { return '"' + printable(text) + '"'; }

/// Reads fields one after another; none is read past the end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::uint64_t position() const { return position_; }
  [[nodiscard]] std::uint64_t left() const { return bytes_.size() - position_; }

  /// What is being read, put in front of the field's name in errors.
  void set_context(std::string context) { context_ = std::move(context); }

  [[noreturn]] void refuse(std::uint64_t offset, const std::string& what) const {
    throw Refused{offset, context_.empty() ? what : context_ + ": " + what};
  }

  template <typename T>
  T read(std::string_view field) {
    static_assert(std::is_arithmetic_v<T>);
    need(sizeof(T), field);
    T value{};
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  /// A length of 64 bits and that many bytes, as a view into the file.
  std::string_view read_string(std::string_view field, std::uint64_t max_bytes) {
    const std::uint64_t start = position_;
    const auto length = read<std::uint64_t>(field);
    if (length > left()) {
      refuse(start, std::string(field) + " has a length of " + std::to_string(length) +
                        " bytes, but only " + std::to_string(left()) + " are left in the file");
    }
    if (length > max_bytes) {
      refuse(start, std::string(field) + " has a length of " + std::to_string(length) +
                        " bytes, at most " + std::to_string(max_bytes) + " are allowed");
    }
    const auto* text = reinterpret_cast<const char*>(bytes_.data() + position_);
    position_ += length;
    return {text, static_cast<std::size_t>(length)};
  }

 private:
  void need(std::uint64_t num_bytes, std::string_view field) const {
    if (num_bytes > left()) {
      refuse(position_, "the file ends inside " + std::string(field) + ": " +
                            std::to_string(num_bytes) + " bytes needed, " + std::to_string(left()) +
                            " left");
    }
  }

  std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
  std::string context_;
};

struct Header {
  std::uint32_t version = 0;
  std::uint64_t num_tensors = 0;
  std::uint64_t num_keys = 0;
};

void check_magic(Cursor& cursor) {
  const auto magic = cursor.read<std::uint32_t>("the magic");
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  if (magic != kMagic) {
    std::string found(4, '\0');
    std::memcpy(found.data(), &magic, 4);
    cursor.refuse(0, "the magic is " + quoted(found) + ", a GGUF file starts with \"GGUF\"");
  }
}

std::uint32_t read_version(Cursor& cursor) {
  const std::uint64_t offset = cursor.position();
  const auto version = cursor.read<std::uint32_t>("the version");
  if (version == 2 || version == 3) {
    return version;
  }
  const std::uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= 3) {
    cursor.refuse(offset, "the file is big-endian (version " + std::to_string(swapped) +
                              "), this build reads little-endian files only");
  }
  cursor.refuse(offset, "the GGUF version is " + std::to_string(version) +
                            ", this build reads versions 2 and 3");
}

std::uint64_t read_count(Cursor& cursor, std::string_view field, std::uint64_t max,
                         std::uint64_t min_entry_bytes) {
  const std::uint64_t offset = cursor.position();
  const auto count = cursor.read<std::uint64_t>(field);
  const std::uint64_t allowed = std::min(max, cursor.left() / min_entry_bytes);
  if (count > allowed) {
    cursor.refuse(offset, std::string(field) + " is " + std::to_string(count) + ", at most " +
                              std::to_string(allowed) + " are allowed (" + std::to_string(max) +
                              ", and what the rest of the file can hold)");
  }
  return count;
}

Header read_header(Cursor& cursor) {
  check_magic(cursor);
  Header header;
  header.version = read_version(cursor);
  header.num_tensors =
      read_count(cursor, "the number of tensors", kMaxTensors, kMinTensorEntryBytes);
  header.num_keys = read_count(cursor, "the number of metadata keys", kMaxKeys, kMinKeyEntryBytes);
  return header;
}

ValueType read_value_type(Cursor& cursor, std::string_view field) {
  const std::uint64_t offset = cursor.position();
  const auto type = cursor.read<std::uint32_t>(field);
  if (type >= kNumValueTypes) {
    cursor.refuse(offset, std::string(field) + " is " + std::to_string(type) +
                              ", the types are 0 to " + std::to_string(kNumValueTypes - 1));
  }
  return static_cast<ValueType>(type);
}

bool read_bool(Cursor& cursor) {
  const std::uint64_t offset = cursor.position();
  const auto value = cursor.read<std::uint8_t>("the value");
  if (value > 1) {
    cursor.refuse(offset, "the boolean is " + std::to_string(value) + ", 0 and 1 are allowed");
  }
  return value == 1;
}

template <typename Stored, typename Widened>
std::vector<Widened> read_numbers(Cursor& cursor, std::uint64_t count) {
  std::vector<Widened> values;
  values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<Widened>(cursor.read<Stored>("an array element")));
  }
  return values;
}

std::vector<bool> read_bools(Cursor& cursor, std::uint64_t count) {
  std::vector<bool> values;
  for (std::uint64_t i = 0; i < count; ++i) {
    values.push_back(read_bool(cursor));
  }
  return values;
}

std::vector<std::string> read_strings(Cursor& cursor, std::uint64_t count) {
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

GgufValue read_array(Cursor& cursor, std::uint64_t& elements_in_all) {
  const std::uint64_t type_offset = cursor.position();
  const ValueType type = read_value_type(cursor, "the type of the array's elements");
  if (type == ValueType::kArray) {
    cursor.refuse(type_offset,
                  "an array of arrays, arrays of numbers, booleans and strings are allowed");
  }
  // The count is bounded by the bytes that are left before anything is allocated for it.
  const std::uint64_t count =
      read_count(cursor, "the length of the array", kMaxArrayElements, smallest_bytes(type));
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

GgufValue read_value(Cursor& cursor, ValueType type, std::uint64_t& elements_in_all) {
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

using Metadata = std::vector<std::pair<std::string, GgufValue>>;
using Index = std::unordered_map<std::string_view, std::size_t>;  // views into the mapped file

constexpr std::string_view kAlignmentKey = "general.alignment";

std::uint64_t checked_alignment(const Cursor& cursor, std::uint64_t offset,
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

// Returns the alignment of the data section.
std::uint64_t read_metadata(Cursor& cursor, std::uint64_t num_keys, Metadata& metadata,
                            Index& index) {
  std::uint64_t alignment = kDefaultAlignment;
  std::uint64_t elements_in_all = 0;
  for (std::uint64_t i = 0; i < num_keys; ++i) {
    cursor.set_context("metadata key " + std::to_string(i));
    const std::uint64_t offset = cursor.position();
    const std::string_view key = cursor.read_string("the key", kMaxKeyBytes);
    if (key.empty()) {
      cursor.refuse(offset, "the key is empty");
    }
    cursor.set_context("metadata key " + quoted(key));
    if (!index.emplace(key, metadata.size()).second) {
      cursor.refuse(offset, "the key is there twice");
    }
    const ValueType type = read_value_type(cursor, "the type of the value");
    const std::uint64_t value_offset = cursor.position();
    metadata.emplace_back(std::string(key), read_value(cursor, type, elements_in_all));
    if (key == kAlignmentKey) {
      alignment = checked_alignment(cursor, value_offset, metadata.back().second);
    }
  }
  cursor.set_context({});
  return alignment;
}

/// A tensor as the file describes it, before its place is checked.
struct TensorEntry {
  GgufTensor tensor;
  std::uint64_t entry_offset = 0;  // of this description in the file, for errors
  std::uint64_t data_offset = 0;   // from the start of the data section
  std::uint64_t num_bytes = 0;
};

std::vector<std::uint64_t> read_dims(Cursor& cursor) {
  const std::uint64_t offset = cursor.position();
  const auto num_dims = cursor.read<std::uint32_t>("the number of dimensions");
  if (num_dims < 1 || num_dims > kMaxDims) {
    cursor.refuse(offset, "the number of dimensions is " + std::to_string(num_dims) + ", 1 to " +
                              std::to_string(kMaxDims) + " are allowed");
  }
  std::vector<std::uint64_t> dims;
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    const std::uint64_t dim_offset = cursor.position();
    dims.push_back(cursor.read<std::uint64_t>("a dimension"));
    if (dims.back() == 0) {
      cursor.refuse(dim_offset, "dimension " + std::to_string(i) + " is 0");
    }
  }
  return dims;
}

GgmlTypeInfo read_tensor_type(Cursor& cursor) {
  const std::uint64_t offset = cursor.position();
  const auto number = cursor.read<std::uint32_t>("the type");
  const std::optional<GgmlTypeInfo> info = ggml_type_info(number);
  if (!info) {
    cursor.refuse(offset, "the type is " + std::to_string(number) + " (" +
                              std::string(unread_type_name(number)) +
                              "), which this build does not read");
  }
  return *info;
}

// Bytes of a tensor; a product that does not fit into 63 bits is refused.
std::uint64_t tensor_bytes(const Cursor& cursor, std::uint64_t offset,
                           const std::vector<std::uint64_t>& dims, const GgmlTypeInfo& info) {
  if (dims[0] % info.block_elements != 0) {
    cursor.refuse(offset, "dimension 0 is " + std::to_string(dims[0]) + ", for type " +
                              std::string(info.name) + " it has to be a multiple of " +
                              std::to_string(info.block_elements));
  }
  constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
  std::uint64_t num_bytes = info.block_bytes;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::uint64_t factor = i == 0 ? dims[0] / info.block_elements : dims[i];
    if (factor > kMaxBytes / num_bytes) {
      cursor.refuse(offset, "the product of the dimensions overflows");
    }
    num_bytes *= factor;
  }
  return num_bytes;
}

TensorEntry read_tensor_entry(Cursor& cursor, std::uint64_t number) {
  TensorEntry entry;
  entry.entry_offset = cursor.position();
  cursor.set_context("tensor " + std::to_string(number));
  const std::string_view name = cursor.read_string("the name", kMaxTensorNameBytes);
  if (name.empty()) {
    cursor.refuse(entry.entry_offset, "the name is empty");
  }
  cursor.set_context("tensor " + quoted(name));
  entry.tensor.name = name;
  const std::uint64_t dims_offset = cursor.position();
  entry.tensor.dims = read_dims(cursor);
  const GgmlTypeInfo info = read_tensor_type(cursor);
  entry.tensor.type = info.type;
  entry.num_bytes = tensor_bytes(cursor, dims_offset, entry.tensor.dims, info);
  entry.data_offset = cursor.read<std::uint64_t>("the data offset");
  return entry;
}

std::vector<TensorEntry> read_tensor_entries(Cursor& cursor, std::uint64_t num_tensors) {
  std::vector<TensorEntry> entries;
  entries.reserve(num_tensors);
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    entries.push_back(read_tensor_entry(cursor, i));
  }
  cursor.set_context({});
  return entries;
}

void place_tensor(const Cursor& cursor, TensorEntry& entry, std::span<const std::byte> data,
                  std::uint64_t alignment) {
  const std::string tensor = "tensor " + quoted(entry.tensor.name);
  if (entry.data_offset % alignment != 0) {
    cursor.refuse(entry.entry_offset,
                  tensor + ": the data offset " + std::to_string(entry.data_offset) +
                      " is no multiple of the alignment " + std::to_string(alignment));
  }
  if (entry.data_offset > data.size() || entry.num_bytes > data.size() - entry.data_offset) {
    cursor.refuse(entry.entry_offset, tensor + ": " + std::to_string(entry.num_bytes) +
                                          " bytes from data offset " +
                                          std::to_string(entry.data_offset) +
                                          " end past the file, whose data section has " +
                                          std::to_string(data.size()) + " bytes");
  }
  entry.tensor.data = data.subspan(entry.data_offset, entry.num_bytes);
}

void check_no_overlap(const Cursor& cursor, const std::vector<TensorEntry>& entries) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(entries[a].data_offset, a) < std::pair(entries[b].data_offset, b);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorEntry& before = entries[order[i - 1]];
    const TensorEntry& after = entries[order[i]];
    if (before.data_offset + before.num_bytes > after.data_offset) {
      cursor.refuse(after.entry_offset,
                    "tensor " + quoted(after.tensor.name) + ": the data at offset " +
                        std::to_string(after.data_offset) + " overlaps tensor " +
                        quoted(before.tensor.name) + ", which ends at " +
                        std::to_string(before.data_offset + before.num_bytes));
    }
  }
}

// The bytes behind the descriptions, from the next multiple of the alignment on.
std::span<const std::byte> data_section(const Cursor& cursor, std::span<const std::byte> bytes,
                                        std::uint64_t alignment, std::uint64_t num_tensors) {
  const std::uint64_t start = (cursor.position() + alignment - 1) / alignment * alignment;
  if (start > bytes.size()) {
    if (num_tensors > 0) {
      cursor.refuse(bytes.size(),
                    "the data section is missing, it starts at byte " + std::to_string(start));
    }
    return {};
  }
  return bytes.subspan(start);
}

}  // namespace

struct GgufFile::Impl {
  std::string path;
  MappedFile file;
  std::uint32_t version = 0;
  Metadata metadata;
  Index metadata_index;
  std::vector<GgufTensor> tensors;
  Index tensor_index;

  void parse();
  void parse_tensors(Cursor& cursor, std::uint64_t num_tensors, std::uint64_t alignment);
};

void GgufFile::Impl::parse() {
  Cursor cursor(file.bytes());
  if (file.bytes().empty()) {
    cursor.refuse(0, "the file is empty");
  }
  const Header header = read_header(cursor);
  version = header.version;
  const std::uint64_t alignment = read_metadata(cursor, header.num_keys, metadata, metadata_index);
  parse_tensors(cursor, header.num_tensors, alignment);
}

void GgufFile::Impl::parse_tensors(Cursor& cursor, std::uint64_t num_tensors,
                                   std::uint64_t alignment) {
  std::vector<TensorEntry> entries = read_tensor_entries(cursor, num_tensors);
  const std::span<const std::byte> data =
      data_section(cursor, file.bytes(), alignment, num_tensors);
  for (TensorEntry& entry : entries) {
    place_tensor(cursor, entry, data, alignment);
  }
  check_no_overlap(cursor, entries);
  tensors.reserve(entries.size());
  for (TensorEntry& entry : entries) {
    tensors.push_back(std::move(entry.tensor));
    // The vector was reserved: its strings stay where they are.
    if (!tensor_index.emplace(tensors.back().name, tensors.size() - 1).second) {
      cursor.refuse(entry.entry_offset,
                    "tensor " + quoted(tensors.back().name) + ": the name is there twice");
    }
  }
}

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) {
    return tl::unexpected(file.error());
  }
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->file = std::move(*file);
  try {
    impl->parse();
  } catch (const Refused& refused) {
    return fail(
        ErrorCode::kInvalidModelFile,
        printable(path, 400) + ": byte " + std::to_string(refused.offset) + ": " + refused.what);
  }
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(impl)));
}

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::~GgufFile() = default;

const std::string& GgufFile::path() const { return impl_->path; }
std::uint64_t GgufFile::size_bytes() const { return impl_->file.bytes().size(); }
std::uint32_t GgufFile::version() const { return impl_->version; }
const std::vector<std::pair<std::string, GgufValue>>& GgufFile::metadata() const {
  return impl_->metadata;
}
const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->tensors; }

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = impl_->metadata_index.find(key);
  return found == impl_->metadata_index.end() ? nullptr : &impl_->metadata[found->second].second;
}

std::optional<std::uint64_t> GgufFile::find_uint(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const auto* number = std::get_if<std::uint64_t>(value)) {
    return *number;
  }
  const auto* number = std::get_if<std::int64_t>(value);
  if (number == nullptr || *number < 0) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(*number);
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* number = value == nullptr ? nullptr : std::get_if<double>(value);
  return number == nullptr ? std::nullopt : std::optional(*number);
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* flag = value == nullptr ? nullptr : std::get_if<bool>(value);
  return flag == nullptr ? std::nullopt : std::optional(*flag);
}

std::optional<std::string_view> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? std::nullopt : std::optional<std::string_view>(*text);
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = impl_->tensor_index.find(name);
  return found == impl_->tensor_index.end() ? nullptr : &impl_->tensors[found->second];
}

}  // namespace kvasir::runtime
