#include "runtime/model/gguf_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvasir::runtime {
namespace {

constexpr std::uint64_t kMaxTensorNameBytes = 63;  // 64 with its final NUL in ggml
constexpr std::uint32_t kMaxDims = 4;

/// A tensor as the file describes it, before its place is checked.
struct TensorEntry {
  GgufTensor tensor;
  std::uint64_t entry_offset = 0;  // of this description in the file, for errors
  std::uint64_t data_offset = 0;   // from the start of the data section
  std::uint64_t num_bytes = 0;
};

std::vector<std::uint64_t> read_dims(GgufCursor& cursor) {
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

GgmlTypeInfo read_tensor_type(GgufCursor& cursor) {
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
std::uint64_t tensor_bytes(const GgufCursor& cursor, std::uint64_t offset,
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

TensorEntry read_tensor_entry(GgufCursor& cursor, std::uint64_t number) {
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

std::vector<TensorEntry> read_tensor_entries(GgufCursor& cursor, std::uint64_t num_tensors) {
  std::vector<TensorEntry> entries;
  entries.reserve(num_tensors);
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    entries.push_back(read_tensor_entry(cursor, i));
  }
  cursor.set_context({});
  return entries;
}

void place_tensor(const GgufCursor& cursor, TensorEntry& entry, std::span<const std::byte> data,
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

void check_no_overlap(const GgufCursor& cursor, const std::vector<TensorEntry>& entries) {
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
std::span<const std::byte> data_section(const GgufCursor& cursor, std::span<const std::byte> bytes,
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

void check_names_differ(const GgufCursor& cursor, const std::vector<TensorEntry>& entries) {
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& entry : entries) {
    if (!names.insert(entry.tensor.name).second) {
      cursor.refuse(entry.entry_offset,
                    "tensor " + quoted(entry.tensor.name) + ": the name is there twice");
    }
  }
}

}  // namespace

std::vector<GgufTensor> read_gguf_tensors(GgufCursor& cursor, std::span<const std::byte> bytes,
                                          std::uint64_t num_tensors, std::uint64_t alignment) {
  std::vector<TensorEntry> entries = read_tensor_entries(cursor, num_tensors);
  check_names_differ(cursor, entries);
  const std::span<const std::byte> data = data_section(cursor, bytes, alignment, num_tensors);
  for (TensorEntry& entry : entries) {
    place_tensor(cursor, entry, data, alignment);
  }
  check_no_overlap(cursor, entries);
  std::vector<GgufTensor> tensors;
  tensors.reserve(entries.size());
  for (TensorEntry& entry : entries) {
    tensors.push_back(std::move(entry.tensor));
  }
  return tensors;
}

}  // namespace kvasir::runtime
