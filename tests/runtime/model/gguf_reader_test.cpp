// What a good file gives, and what kinds of files are opened at all. Damaged ones are in
// gguf_hostile_test.
#include "runtime/model/gguf_reader.h"

#include "tests/runtime/model/small_model.h"
#include "tests/support/catch.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

using namespace kvasir::runtime;
using Catch::Matchers::Contains;
using kvasir::test::ByteWriter;
using kvasir::test::GgufKind;
using kvasir::test::GgufWriter;
using kvasir::test::TemporaryFile;

namespace {

std::unique_ptr<GgufFile> open_bytes(const std::string& bytes) {
  const TemporaryFile file(bytes);
  auto opened = GgufFile::open(file.path());
  INFO((opened ? "" : opened.error().message));
  REQUIRE(opened);
  return std::move(*opened);
}

std::string open_error(const std::string& path) {
  const auto opened = GgufFile::open(path);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == kvasir::ErrorCode::kInvalidModelFile);
  return opened.error().message;
}

template <typename T>
std::string encoded(T value) {
  return ByteWriter().number(value).bytes();
}

}  // namespace

TEST_CASE("GgufFile: every value type is read and widened", "[runtime]") {
  GgufWriter writer;
  writer.set_raw("u8", GgufKind::kUint8, encoded(std::uint8_t{200}));
  writer.set_raw("i8", GgufKind::kInt8, encoded(std::int8_t{-100}));
  writer.set_raw("u16", GgufKind::kUint16, encoded(std::uint16_t{60000}));
  writer.set_raw("i16", GgufKind::kInt16, encoded(std::int16_t{-30000}));
  writer.set_raw("u32", GgufKind::kUint32, encoded(std::uint32_t{4000000000}));
  writer.set_raw("i32", GgufKind::kInt32, encoded(std::int32_t{2000000000}));
  writer.set_raw("u64", GgufKind::kUint64, encoded(std::uint64_t{1} << 63));
  writer.set_raw("i64", GgufKind::kInt64, encoded(std::int64_t{-5}));
  writer.set("f32", 0.5F);
  writer.set_raw("f64", GgufKind::kFloat64, encoded(0.1));
  writer.set_bool("yes", true).set_bool("no", false);
  writer.set_text("text", "snow");
  const auto file = open_bytes(writer.bytes());

  CHECK(file->find_uint("u8") == 200U);
  CHECK(file->find_uint("u16") == 60000U);
  CHECK(file->find_uint("u32") == 4000000000U);
  CHECK(file->find_uint("u64") == std::uint64_t{1} << 63);
  CHECK(file->find_uint("i32") == 2000000000U);
  CHECK(std::get<std::int64_t>(*file->find("i8")) == -100);
  CHECK(std::get<std::int64_t>(*file->find("i16")) == -30000);
  CHECK_FALSE(file->find_uint("i64"));
  CHECK(file->find_float("f32") == 0.5);
  CHECK(file->find_float("f64") == 0.1);
  CHECK(file->find_bool("yes") == true);
  CHECK(file->find_bool("no") == false);
  CHECK(file->find_string("text") == "snow");
}

TEST_CASE("GgufFile: a look-up with another type, or of no key, is absent", "[runtime]") {
  GgufWriter writer;
  writer.set("number", 7U).set_text("text", "snow");
  const auto file = open_bytes(writer.bytes());
  CHECK_FALSE(file->find_float("number"));
  CHECK_FALSE(file->find_string("number"));
  CHECK_FALSE(file->find_bool("number"));
  CHECK_FALSE(file->find_uint("text"));
  CHECK(file->find("tex") == nullptr);
  CHECK(file->find_tensor("text") == nullptr);
}

TEST_CASE("GgufFile: arrays of numbers, booleans and strings are read", "[runtime]") {
  GgufWriter writer;
  writer.set_texts("texts", {"raven", "", "wolf"});
  writer.set_numbers<std::uint16_t>("shorts", GgufKind::kUint16, {1, 65535});
  writer.set_numbers<std::int64_t>("longs", GgufKind::kInt64, {-1, 1LL << 62});
  writer.set_numbers<float>("floats", GgufKind::kFloat32, {0.25F, -2.0F});
  writer.set_numbers<std::uint8_t>("flags", GgufKind::kBool, {1, 0, 1});
  writer.set_numbers<std::uint32_t>("none", GgufKind::kUint32, {});
  const auto file = open_bytes(writer.bytes());
  CHECK(std::get<std::vector<std::string>>(*file->find("texts")) ==
        std::vector<std::string>{"raven", "", "wolf"});
  CHECK(std::get<std::vector<std::uint64_t>>(*file->find("shorts")) ==
        std::vector<std::uint64_t>{1, 65535});
  CHECK(std::get<std::vector<std::int64_t>>(*file->find("longs")) ==
        std::vector<std::int64_t>{-1, 1LL << 62});
  CHECK(std::get<std::vector<double>>(*file->find("floats")) == std::vector<double>{0.25, -2.0});
  CHECK(std::get<std::vector<bool>>(*file->find("flags")) == std::vector<bool>{true, false, true});
  CHECK(std::get<std::vector<std::uint64_t>>(*file->find("none")).empty());
}

TEST_CASE("GgufFile: keys keep the order of the file", "[runtime]") {
  GgufWriter writer;
  writer.set("zebra", 1U).set("ape", 2U).set("mole", 3U);
  const auto file = open_bytes(writer.bytes());
  std::vector<std::string> keys;
  for (const auto& [key, value] : file->metadata()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"zebra", "ape", "mole"});
}

TEST_CASE("GgufFile: tensors have their type, dimensions and bytes, in versions 2 and 3",
          "[runtime]") {
  const std::uint32_t version = GENERATE(2U, 3U);
  GgufWriter writer = kvasir::runtime::test::small_model();
  writer.version = version;
  writer.tensor("output_norm.weight").data = std::string(128, '\x07');
  const auto file = open_bytes(writer.bytes());
  CHECK(file->version() == version);
  CHECK(file->tensors().size() == 11);
  const GgufTensor* down = file->find_tensor("blk.0.ffn_down.weight");
  REQUIRE(down != nullptr);
  CHECK(down->type == GgmlType::kQ8_0);
  CHECK(down->dims == std::vector<std::uint64_t>{32, 32});
  CHECK(down->data.size() == 32 * 34);
  CHECK(down->data.front() == std::byte{1});
  const GgufTensor* norm = file->find_tensor("output_norm.weight");
  REQUIRE(norm != nullptr);
  CHECK(norm->data.size() == 128);
  CHECK(norm->data.front() == std::byte{7});
  CHECK(norm->data.back() == std::byte{7});
}

TEST_CASE("GgufFile: the data section follows general.alignment", "[runtime]") {
  const std::uint32_t alignment = GENERATE(8U, 64U, 4096U);
  GgufWriter writer;
  writer.alignment = alignment;
  writer.set("general.alignment", alignment);
  writer.add_tensor({"a", {1}, 0, "\x01\x02\x03\x04", std::nullopt});
  writer.add_tensor({"b", {1}, 0, "\x05\x06\x07\x08", std::nullopt});
  const auto file = open_bytes(writer.bytes());
  CHECK(file->find_tensor("a")->data[0] == std::byte{1});
  CHECK(file->find_tensor("b")->data[0] == std::byte{5});
  CHECK(file->find_tensor("b")->data.data() - file->find_tensor("a")->data.data() == alignment);
}

TEST_CASE("GgufFile: gaps between tensors and any order of their data are allowed", "[runtime]") {
  GgufWriter writer;
  writer.add_tensor({"late", {1}, 0, "\x01\x02\x03\x04", 64});
  writer.add_tensor({"early", {1}, 0, "\x05\x06\x07\x08", 0});
  writer.add_tensor({"last", {1}, 0, "\x09\x0a\x0b\x0c", 128});
  const auto file = open_bytes(writer.bytes() + std::string(64, '\0'));
  CHECK(file->find_tensor("early")->data[0] == std::byte{1});  // the writer has the data in order
  CHECK(file->find_tensor("last")->data.size() == 4);
}

TEST_CASE("GgufFile: a path that is no readable regular file is refused with the cause",
          "[runtime]") {
  const TemporaryFile place;
  const std::string path = place.path() + "_other";

  SECTION("empty path") { CHECK_THAT(open_error(""), Contains("empty")); }
  SECTION("NUL in the path") {
    const std::string hidden = place.path() + std::string("\0.gguf", 6);
    CHECK_THAT(open_error(hidden), Contains("NUL"));
  }
  SECTION("missing") { CHECK_THAT(open_error(path), Contains(path) && Contains("No such file")); }
  SECTION("folder") {
    CHECK_THAT(open_error(std::filesystem::temp_directory_path()), Contains("is a folder"));
  }
  SECTION("device") { CHECK_THAT(open_error("/dev/null"), Contains("is a device")); }
  SECTION("FIFO without a writer, which must not be waited for") {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK_THAT(open_error(path), Contains("is a FIFO"));
    ::unlink(path.c_str());
  }
  SECTION("no permission") {
    REQUIRE(::chmod(place.path().c_str(), 0) == 0);
    // The superuser may read it all the same; it is empty then.
    CHECK_THAT(open_error(place.path()), Contains("Permission denied") || Contains("is empty"));
  }
  SECTION("empty file") {
    CHECK_THAT(open_error(place.path()), Contains("byte 0") && Contains("the file is empty"));
  }
}

TEST_CASE("GgufFile: a string array of a large vocabulary is read whole", "[runtime]") {
  std::vector<std::string> tokens;
  for (int i = 0; i < 150'000; ++i) tokens.push_back("token" + std::to_string(i));
  GgufWriter writer;
  writer.set_texts("tokenizer.ggml.tokens", tokens);
  const auto file = open_bytes(writer.bytes());
  CHECK(std::get<std::vector<std::string>>(*file->find("tokenizer.ggml.tokens")) == tokens);
}
