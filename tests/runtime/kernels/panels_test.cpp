#include "runtime/kernels/panels.h"

#include "tests/runtime/kernels/quant_cases.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

namespace {

std::vector<char> read_golden(const std::string& name) {
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/dequant/" + name,
                   std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<float> unpack(const PanelWeights& w, std::uint32_t row) {
  std::vector<float> out(w.k);
  unpack_row(w.type, w.panels->data() + row / kPanelRows * panel_bytes(w.type, w.k),
             row % kPanelRows, w.k, out.data());
  return out;
}

std::vector<float> floats_of(const PanelWeights& w, std::uint32_t row) {
  const auto begin = w.floats.begin() + std::ptrdiff_t{row} * w.k;
  return {begin, begin + w.k};
}

}  // namespace

TEST_CASE("panels: golden rows come back as the reference's values", "[runtime][kernel][golden]") {
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/dequant/index.json");
  const nlohmann::json index = nlohmann::json::parse(in);
  std::size_t num_types = 0;
  for (const auto& entry : index["types"]) {
    const auto info = ggml_type_info(entry["ggml_type"].get<std::uint32_t>());
    REQUIRE(info);
    if (!has_panels(info->type)) continue;
    ++num_types;
    INFO(info->name);
    const std::uint32_t rows = entry["rows"], k = entry["cols"];
    const auto raw = read_golden(entry["raw"].get<std::string>());
    const auto values = read_golden(entry["f32"].get<std::string>());
    const AlignedBytes panel(panel_bytes(info->type, k));
    pack_panel(info->type, reinterpret_cast<const std::byte*>(raw.data()), raw.size() / rows, rows,
               k, panel.data());
    CHECK(panel.guards_hold());
    for (std::uint32_t row = 0; row < kPanelRows; ++row) {
      std::vector<float> out(k), expected(k, 0.0F);
      unpack_row(info->type, panel.data(), row, k, out.data());
      if (row < rows) {
        std::memcpy(expected.data(), values.data() + std::size_t{row} * k * 4, std::size_t{k} * 4);
        CHECK(same_bits(out, expected));
      } else {
        CHECK(out == expected);  // a missing row: zeros of either sign
      }
    }
  }
  CHECK(num_types == std::size(kPanelTypes));
}

TEST_CASE("panels: random rows come back bit for bit, whatever the number of rows",
          "[runtime][kernel]") {
  for (const GgmlType type : kPanelTypes) {
    INFO(type_info(type).name);
    CHECK(has_panels(type));
    for (const std::uint32_t rows : {1U, 31U, 32U, 33U}) {
      const PanelWeights w(type, rows, 512, rows);
      CHECK(w.panels->guards_hold());
      std::size_t different = 0;
      for (std::uint32_t row = 0; row < rows; ++row) {
        different += same_bits(unpack(w, row), floats_of(w, row)) ? 0 : 1;
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("panels: special f16 scales come back as dequantising gives them", "[runtime][kernel]") {
  // Zero, smallest and largest subnormal, smallest normal, largest, infinity, NaN of both kinds;
  // both signs.
  for (const std::uint32_t half :
       {0x0000U, 0x0001U, 0x03FFU, 0x0400U, 0x7BFFU, 0x7C00U, 0x7C01U, 0x7E01U}) {
    for (const std::uint32_t sign : {0x0000U, 0x8000U}) {
      for (const GgmlType type : kPanelTypes) {
        INFO(type_info(type).name << " scale " << (half | sign));
        PanelWeights w(type, 3, 256, 9);
        for (std::size_t at = 0; at < w.blocks.size(); at += type_info(type).block_bytes) {
          put_half(w.blocks.data() + at + panel_f16_offsets(type)[0], half | sign);
        }
        w.pack();
        for (std::uint32_t row = 0; row < w.rows; ++row) {
          CHECK(same_bits(unpack(w, row), floats_of(w, row)));
        }
      }
    }
  }
}

TEST_CASE("panels: sizes are multiples of 64, grow with k and do not overflow",
          "[runtime][kernel]") {
  for (const GgmlType type : kPanelTypes) {
    INFO(type_info(type).name);
    const std::size_t unit = panel_bytes(type, 256);
    CHECK(unit % 64 == 0);
    // Nothing but the codes and scales of the file, reordered: at most three percent more (the K
    // types' scales have six bits in the file).
    const std::size_t file_bytes = std::size_t{kPanelRows} * 256 / type_info(type).block_elements *
                                   type_info(type).block_bytes;
    CHECK(unit >= file_bytes);
    CHECK(unit <= file_bytes + file_bytes * 4 / 100);
    const std::uint32_t largest = 0xFFFFFF00U;
    CHECK(panel_bytes(type, largest) == largest / 256 * unit);
  }
  CHECK(num_panels(0) == 0);
  CHECK(num_panels(1) == 1);
  CHECK(num_panels(32) == 1);
  CHECK(num_panels(33) == 2);
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16}) {
    CHECK_FALSE(has_panels(type));
  }
}
