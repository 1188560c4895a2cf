// Damaged GGUF files, one rule each: all are refused with one line that names the file, the offset
// and the field. Cut and randomly damaged files are in gguf_damage_test.
#include "runtime/model/gguf_reader.h"
#include "tests/runtime/model/small_model.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <sys/resource.h>
#include <vector>

using namespace kvasir::runtime;
using kvasir::runtime::test::small_model;
using kvasir::test::ByteWriter;
using kvasir::test::GgufKind;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

constexpr std::uint64_t kTwoTo63 = std::uint64_t{1} << 63;
constexpr std::uint64_t kAllOnes = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kQ4_0 = 2;

long peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/// The file is refused within `max_growth_kib` of memory, on one line without control characters
/// that names the file and `expected`.
void check_refused(const std::string& bytes, const std::vector<std::string>& expected,
                   long max_growth_kib = 8 * 1024) {
  const MemoryFile file(bytes);
  const long before_kib = peak_kib();
  const auto opened = GgufFile::open(file.path());
  REQUIRE_FALSE(opened);
  CHECK(peak_kib() - before_kib < max_growth_kib);
  const std::string& message = opened.error().message;
  INFO(message);
  CHECK(opened.error().code == kvasir::ErrorCode::kInvalidModelFile);
  CHECK(message.rfind(file.path() + ": byte ", 0) == 0);
  CHECK(std::none_of(message.begin(), message.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }));
  for (const std::string& part : expected) {
    INFO("expected in the message: " << part);
    CHECK(message.find(part) != std::string::npos);
  }
}

/// As check_refused, for a good file with `damage` done to it.
void check_damaged(const std::function<void(GgufWriter&)>& damage,
                   const std::vector<std::string>& expected) {
  GgufWriter writer = small_model();
  damage(writer);
  check_refused(writer.bytes(), expected);
}

std::string at_byte(std::uint64_t offset) { return ": byte " + std::to_string(offset) + ": "; }

/// Four bytes of data at the start of the data section and `head` in front of it.
GgufWriter one_tensor(std::vector<std::uint64_t> dims, std::uint32_t type) {
  GgufWriter writer;
  writer.add_tensor({"a", std::move(dims), type, std::string(4096, '\0'), std::nullopt});
  return writer;
}

}  // namespace

TEST_CASE("GGUF: files that are no GGUF of version 2 or 3 are refused", "[runtime][hostile]") {
  check_refused("", {at_byte(0), "empty"});
  check_refused("G", {at_byte(0), "the magic"});
  check_refused("GGUF", {at_byte(4), "the version", "4 bytes needed, 0 left"});
  check_damaged([](GgufWriter& w) { w.magic = "GGML"; }, {at_byte(0), "GGML"});
  check_damaged([](GgufWriter& w) { w.magic = "\x1b[2J"; }, {at_byte(0), "\\x1b[2J"});
  for (const std::uint32_t version : {0U, 1U, 4U, 0xFFFFFFFFU}) {
    check_damaged([&](GgufWriter& w) { w.version = version; },
                  {at_byte(4), "version is " + std::to_string(version), "versions 2 and 3"});
  }
  check_damaged([](GgufWriter& w) { w.version = 0x03000000; },
                {at_byte(4), "big-endian (version 3)"});
}

TEST_CASE("GGUF: counts above what the file can hold are refused", "[runtime][hostile]") {
  for (const std::uint64_t count : {kTwoTo63, std::uint64_t{1} << 61, kAllOnes,
                                    std::uint64_t{1} << 58, std::uint64_t{1} << 30}) {
    check_damaged([&](GgufWriter& w) { w.num_keys = count; },
                  {at_byte(16), "number of metadata keys is " + std::to_string(count)});
    check_damaged([&](GgufWriter& w) { w.num_tensors = count; },
                  {at_byte(8), "number of tensors is " + std::to_string(count)});
  }
}

TEST_CASE("GGUF: counts that are wrong by one are refused", "[runtime][hostile]") {
  // One key more takes the first tensor for a key, so that tensors start in the middle of one. One
  // tensor more takes the data section for a tensor.
  GgufWriter keys = small_model();
  keys.num_keys = 13;
  check_refused(keys.bytes(), {"tensor 0: the name has a length"});
  GgufWriter tensors = small_model();
  tensors.num_tensors = 12;
  check_refused(tensors.bytes(), {"tensor 11"});
}

TEST_CASE("GGUF: a file without keys and tensors is a container, but no model",
          "[runtime][hostile]") {
  const std::string verdict = kvasir::runtime::test::verdict_on(GgufWriter().bytes());
  CHECK(verdict.find("general.architecture\" is missing") != std::string::npos);
}

TEST_CASE("GGUF: lengths above what is left are refused", "[runtime][hostile]") {
  const auto announced = [](std::uint64_t length, std::uint64_t left) {
    return std::vector<std::uint64_t>{kAllOnes, kTwoTo63, std::uint64_t{1} << 30, left + 1}[length];
  };
  for (std::uint64_t i = 0; i < 4; ++i) {
    const std::string head = ByteWriter()
                                 .raw("GGUF")
                                 .number(3U)
                                 .number(std::uint64_t{0})
                                 .number(std::uint64_t{1})
                                 .bytes();
    const std::string rest(100, 'x');

    const std::uint64_t key_length = announced(i, rest.size());
    check_refused(
        head + ByteWriter().number(key_length).bytes() + rest,
        {at_byte(24), "the key has a length of " + std::to_string(key_length), "only 100"});

    const std::string value_head = head + ByteWriter().text("k").kind(GgufKind::kString).bytes();
    check_refused(value_head + ByteWriter().number(announced(i, rest.size())).bytes() + rest,
                  {at_byte(value_head.size()), "metadata key \"k\"", "the value has a length"});

    const std::string array_head =
        head + ByteWriter().text("k").kind(GgufKind::kArray).kind(GgufKind::kUint8).bytes();
    check_refused(array_head + ByteWriter().number(announced(i, rest.size())).bytes() + rest,
                  {at_byte(array_head.size()), "metadata key \"k\"", "length of the array is"});

    const std::string element_head = head + ByteWriter()
                                                .text("k")
                                                .kind(GgufKind::kArray)
                                                .kind(GgufKind::kString)
                                                .number(std::uint64_t{1})
                                                .bytes();
    check_refused(element_head + ByteWriter().number(announced(i, rest.size())).bytes() + rest,
                  {at_byte(element_head.size()), "an array element has a length"});

    const std::string tensor_head = ByteWriter()
                                        .raw("GGUF")
                                        .number(3U)
                                        .number(std::uint64_t{1})
                                        .number(std::uint64_t{0})
                                        .bytes();
    check_refused(tensor_head + ByteWriter().number(announced(i, rest.size())).bytes() + rest,
                  {at_byte(24), "tensor 0", "the name has a length"});
  }
}

TEST_CASE("GGUF: a length that the file could hold is bounded too", "[runtime][hostile]") {
  check_damaged([](GgufWriter& w) { w.set(std::string(65'536, 'k'), 1U); },
                {"the key has a length of 65536 bytes, at most 65535"});
  GgufWriter writer;
  writer.set_numbers("k", GgufKind::kUint8, std::vector<std::uint8_t>((2U << 20) + 1));
  check_refused(writer.bytes(), {"length of the array is 2097153, at most 2097152"});
  GgufWriter many;
  for (const char* key : {"a", "b", "c"}) {
    many.set_numbers(key, GgufKind::kUint8, std::vector<std::uint8_t>(2U << 20));
  }
  check_refused(many.bytes(), {"metadata key \"c\"", "more than 4194304 elements together"},
                64 * 1024);  // 4 Mi numbers of eight bytes, and the file itself
}

TEST_CASE("GGUF: empty, long and repeated names are refused", "[runtime][hostile]") {
  check_damaged([](GgufWriter& w) { w.set("", 1U); }, {"metadata key 12", "the key is empty"});
  check_damaged([](GgufWriter& w) { w.repeat("general.name"); },
                {"metadata key \"general.name\"", "twice"});
  check_damaged([](GgufWriter& w) { w.tensor("output_norm.weight").name = ""; },
                {"tensor 10", "the name is empty"});
  check_damaged([](GgufWriter& w) { w.tensor("output_norm.weight").name = std::string(64, 'n'); },
                {"tensor 10", "length of 64 bytes, at most 63"});
  check_damaged([](GgufWriter& w) { w.tensor("output_norm.weight").name = "token_embd.weight"; },
                {"tensor \"token_embd.weight\"", "twice"});
}

TEST_CASE("GGUF: control characters in names are escaped and long names shortened",
          "[runtime][hostile]") {
  const std::string evil = "\x1b]0;owned\x07\r\n\x7f" + std::string(200, 'x');
  check_damaged([&](GgufWriter& w) { w.set(evil, 1U).repeat(evil); },
                {"\\x1b]0;owned\\x07\\x0d\\n\\x7fxxx", "...", "twice"});
}

TEST_CASE("GGUF: unknown value types, arrays of arrays and odd booleans are refused",
          "[runtime][hostile]") {
  check_damaged([](GgufWriter& w) { w.set_raw("k", static_cast<GgufKind>(13), "abcd"); },
                {"metadata key \"k\"", "type of the value is 13", "0 to 12"});
  check_damaged([](GgufWriter& w) { w.set_raw("k", static_cast<GgufKind>(0xFFFFFFFF), "abcd"); },
                {"type of the value is 4294967295"});
  check_damaged(
      [](GgufWriter& w) {
        w.set_raw("k", GgufKind::kArray, ByteWriter().number(13U).number(std::uint64_t{0}).bytes());
      },
      {"type of the array's elements is 13"});
  check_damaged(
      [](GgufWriter& w) {
        w.set_raw("k", GgufKind::kArray,
                  ByteWriter().kind(GgufKind::kArray).number(std::uint64_t{1}).bytes());
      },
      {"metadata key \"k\"", "array of arrays"});
  check_damaged([](GgufWriter& w) { w.set_raw("k", GgufKind::kBool, "\x02"); },
                {"the boolean is 2"});
}

TEST_CASE("GGUF: dimensions whose product is no size of a file are refused", "[runtime][hostile]") {
  const std::uint64_t two_to_32 = std::uint64_t{1} << 32;
  check_refused(one_tensor({two_to_32, two_to_32}, kF32).bytes(),
                {"tensor \"a\"", "product of the dimensions overflows"});
  check_refused(one_tensor({two_to_32, two_to_32, two_to_32, two_to_32}, kF32).bytes(),
                {"product of the dimensions overflows"});
  check_refused(one_tensor({(std::uint64_t{1} << 62) - 1}, kF32).bytes(),
                {"product of the dimensions overflows"});
  check_refused(one_tensor({kAllOnes}, kF32).bytes(), {"product of the dimensions overflows"});
  // 2^61 - 8 floats have 2^63 - 32 bytes: no overflow, but past the end, also after padding.
  check_refused(one_tensor({(std::uint64_t{1} << 61) - 8}, kF32).bytes(), {"end past the file"});
  for (const std::uint64_t columns : {1U, 31U, 33U, 63U}) {
    check_refused(one_tensor({columns, 32}, kQ4_0).bytes(),
                  {"dimension 0 is " + std::to_string(columns), "Q4_0", "multiple of 32"});
  }
}

TEST_CASE("GGUF: sizes whose sum wraps are refused", "[runtime][hostile]") {
  GgufWriter writer;
  const std::uint64_t large = (std::uint64_t{1} << 61) - 8;  // floats: 2^63 - 32 bytes
  for (const char* name : {"a", "b", "c"})
    writer.add_tensor({name, {large}, kF32, "", std::nullopt});
  check_refused(writer.bytes() + std::string(4096, '\0'), {"tensor \"a\"", "end past the file"});
}

TEST_CASE("GGUF: tensors outside the data section are refused", "[runtime][hostile]") {
  const auto shifted = [](std::uint64_t offset) {
    GgufWriter writer = small_model();
    writer.tensor("output_norm.weight").offset = offset;
    return writer.bytes();
  };
  for (const std::uint64_t offset : {std::uint64_t{1} << 20, kTwoTo63, kAllOnes - 31}) {
    check_refused(shifted(offset), {"tensor \"output_norm.weight\"", "end past the file"});
  }
  for (const std::uint64_t offset : {1U, 31U, 4U}) {
    check_refused(shifted(offset), {"no multiple of the alignment 32"});
  }
  GgufWriter whole = small_model();
  std::string cut = whole.bytes();
  REQUIRE(kvasir::runtime::test::verdict_on(cut).empty());
  cut.pop_back();
  check_refused(cut, {"tensor \"output_norm.weight\"", "end past the file"});
  check_refused(small_model().head(), {"data section"});
}

TEST_CASE("GGUF: tensors that overlap are refused", "[runtime][hostile]") {
  check_damaged([](GgufWriter& w) { w.tensor("blk.0.attn_norm.weight").offset = 0; },
                {"overlaps tensor"});
  GgufWriter writer;
  writer.add_tensor({"long", {9}, kF32, std::string(36, 'a'), std::nullopt});
  writer.add_tensor({"short", {1}, kF32, std::string(4, 'b'), 32});
  check_refused(writer.bytes(), {"tensor \"short\"", "overlaps tensor \"long\", which ends at 36"});
}

TEST_CASE("GGUF: numbers of dimensions and dimensions out of range are refused",
          "[runtime][hostile]") {
  check_refused(one_tensor({}, kF32).bytes(), {"number of dimensions is 0, 1 to 4"});
  check_refused(one_tensor({1, 1, 1, 1, 1}, kF32).bytes(), {"number of dimensions is 5"});
  const std::string head = ByteWriter()
                               .raw("GGUF")
                               .number(3U)
                               .number(std::uint64_t{1})
                               .number(std::uint64_t{0})
                               .text("a")
                               .bytes();
  check_refused(head + ByteWriter().number(0xFFFFFFFFU).bytes() + std::string(200, '\1'),
                {"number of dimensions is 4294967295"});
  check_refused(one_tensor({0}, kF32).bytes(), {"dimension 0 is 0"});
  check_refused(one_tensor({4, 0}, kF32).bytes(), {"dimension 1 is 0"});
}

TEST_CASE("GGUF: types that this build does not read are refused by number and name",
          "[runtime][hostile]") {
  check_refused(one_tensor({32}, 255).bytes(), {"the type is 255 (unknown)"});
  check_refused(one_tensor({32}, 0xFFFFFFFF).bytes(), {"the type is 4294967295 (unknown)"});
  check_refused(one_tensor({256}, 16).bytes(), {"the type is 16 (IQ2_XXS)"});
  check_refused(one_tensor({32}, 9).bytes(), {"the type is 9 (Q8_1)"});
}

TEST_CASE("GGUF: an alignment that is no power of two in range is refused", "[runtime][hostile]") {
  for (const std::uint32_t alignment : {0U, 1U, 3U, 4U, 24U, 131'072U, 0x80000000U}) {
    check_damaged([&](GgufWriter& w) { w.set("general.alignment", alignment); },
                  {"general.alignment", "the value is " + std::to_string(alignment),
                   "powers of two from 8 to 65536"});
  }
  check_damaged([](GgufWriter& w) { w.set_text("general.alignment", "32"); },
                {"general.alignment", "no unsigned integer"});
}
