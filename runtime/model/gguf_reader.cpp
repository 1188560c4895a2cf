#include "runtime/model/gguf_reader.h"

#include "runtime/model/gguf_cursor.h"
#include "runtime/model/gguf_metadata.h"
#include "runtime/model/gguf_tensors.h"
#include "runtime/model/mapped_file.h"
#include "runtime/model/printable.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvasir::runtime {
namespace {

// The largest models have a few thousand tensors and some hundred keys.
constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxTensors = 65'536;

struct Header {
  std::uint32_t version = 0;
  std::uint64_t num_tensors = 0;
  std::uint64_t num_keys = 0;
};

void check_magic(GgufCursor& cursor) {
  const auto magic = cursor.read<std::uint32_t>("the magic");
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  if (magic != kMagic) {
    std::string found(4, '\0');
    std::memcpy(found.data(), &magic, 4);
    cursor.refuse(0, "the magic is " + quoted(found) + ", a GGUF file starts with \"GGUF\"");
  }
}

std::uint32_t read_version(GgufCursor& cursor) {
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

Header read_header(GgufCursor& cursor) {
  check_magic(cursor);
  Header header;
  header.version = read_version(cursor);
  header.num_tensors =
      cursor.read_count("the number of tensors", kMaxTensors, kMinTensorEntryBytes);
  header.num_keys = cursor.read_count("the number of metadata keys", kMaxKeys, kMinKeyEntryBytes);
  return header;
}

}  // namespace

struct GgufFile::Impl {
  std::string path;
  MappedFile file;
  std::uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;
  GgufIndex tensor_index;  // its keys are views of the tensors' names

  void parse();
};

void GgufFile::Impl::parse() {
  GgufCursor cursor(file.bytes());
  if (file.bytes().empty()) {
    cursor.refuse(0, "the file is empty");
  }
  const Header header = read_header(cursor);
  version = header.version;
  metadata = read_gguf_metadata(cursor, header.num_keys);
  tensors = read_gguf_tensors(cursor, file.bytes(), header.num_tensors, metadata.alignment);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensor_index.emplace(tensors[i].name, i);
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
  } catch (const GgufRefused& refused) {
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
  return impl_->metadata.entries;
}
const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->tensors; }

void GgufFile::release_pages(std::span<const std::byte> data) const {
  impl_->file.release_pages(data);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = impl_->metadata.index.find(key);
  return found == impl_->metadata.index.end() ? nullptr
                                              : &impl_->metadata.entries[found->second].second;
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
