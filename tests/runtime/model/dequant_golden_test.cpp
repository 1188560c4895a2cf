// Every instruction set against golden blocks of every tensor type: values to the bit, products
// within the rounding of a float32 sum.
#include "runtime/kernels/dispatch.h"
#include "runtime/model/ggml_type.h"
#include "tests/support/catch.h"

#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

using namespace kvasir::runtime;

namespace {

const std::string kFolder = std::string(KVASIR_SOURCE_DIR) + "/tests/golden/dequant/";

std::vector<char> read_bytes(const std::string& name) {
  std::ifstream in(kFolder + name, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<float> read_floats(const std::string& name) {
  const std::vector<char> bytes = read_bytes(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct GoldenType {
  GgmlTypeInfo info;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  std::vector<char> raw;             // rows of blocks
  std::vector<float> values;         // [rows, cols]
  std::vector<float> x;              // [cols]
  std::vector<double> products;      // [rows]
  std::vector<double> abs_products;  // [rows]

  [[nodiscard]] const std::byte* blocks() const {
    return reinterpret_cast<const std::byte*>(raw.data());
  }
  [[nodiscard]] std::size_t row_bytes() const { return raw.size() / rows; }
};

std::vector<GoldenType> golden_types() {
  std::ifstream in(kFolder + "index.json");
  REQUIRE(in);
  std::vector<GoldenType> types;
  const nlohmann::json index = nlohmann::json::parse(in);
  for (const auto& entry : index["types"]) {
    const auto info = ggml_type_info(entry["ggml_type"].get<std::uint32_t>());
    REQUIRE(info);
    CHECK(info->name == entry["type"].get<std::string>());
    CHECK(info->block_elements == entry["block_elements"].get<std::uint32_t>());
    CHECK(info->block_bytes == entry["block_bytes"].get<std::uint32_t>());
    types.push_back({*info, entry["rows"], entry["cols"], read_bytes(entry["raw"]),
                     read_floats(entry["f32"]), read_floats(entry["x"]), entry["matvec_f64"],
                     entry["abs_dot_f64"]});
  }
  return types;
}

/// Instruction sets that are compiled in and that this CPU has.
std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : compiled_isas()) {
    if (cpu_supports(isa)) isas.push_back(isa);
  }
  return isas;
}

using AlignedFloats = std::unique_ptr<float[], void (*)(float*)>;

AlignedFloats aligned_floats(std::size_t count) {
  constexpr std::align_val_t kAlignment{64};
  auto* memory = static_cast<float*>(::operator new(count * sizeof(float) + 64, kAlignment));
  return {memory, [](float* held) { ::operator delete(held, std::align_val_t{64}); }};
}

std::vector<float> multiply(const KernelTable& kernels, const GoldenType& golden) {
  std::vector<float> y(golden.rows);
  const AlignedFloats scratch = aligned_floats(kernels.matmul_scratch_floats(golden.cols));
  MatmulTask task;
  task.type = golden.info.type;
  task.weights = golden.blocks();
  task.row_bytes = golden.row_bytes();
  task.k = golden.cols;
  task.row_begin = 0;
  task.row_end = golden.rows;
  task.x = golden.x.data();
  task.x_stride = golden.cols;
  task.num_x = 1;
  task.y = y.data();
  task.y_stride = golden.rows;
  task.scratch = scratch.get();
  kernels.matmul(task);
  return y;
}

/// A sum of n products in float32, whatever its order, is off by at most n roundings of the sum of
/// their absolute values: cols times half a unit in the last place (2^-24), and one more for
/// rounding each product.
double tolerance(const GoldenType& golden, std::size_t row) {
  return (golden.cols + 1.0) * std::ldexp(1.0, -24) * golden.abs_products[row] +
         golden.cols * double{std::numeric_limits<float>::denorm_min()};
}

}  // namespace

TEST_CASE("Dequantisation: golden data has every type that is read, F32 aside",
          "[runtime][kernel][golden]") {
  CHECK(golden_types().size() == 14);
}

TEST_CASE("Dequantisation: every instruction set gives the reference's bits",
          "[runtime][kernel][golden]") {
  REQUIRE_FALSE(runnable_isas().empty());
  for (const Isa isa : runnable_isas()) {
    const KernelTable& kernels = kernels_for(isa);
    REQUIRE(kernels.isa == isa);
    for (const GoldenType& golden : golden_types()) {
      std::vector<float> out(golden.values.size(), std::numeric_limits<float>::quiet_NaN());
      kernels.dequantize(golden.info.type, golden.blocks(), out.data(), out.size());
      std::size_t num_different = 0;
      for (std::size_t i = 0; i < out.size(); ++i) {
        num_different +=
            std::bit_cast<std::uint32_t>(out[i]) != std::bit_cast<std::uint32_t>(golden.values[i]);
      }
      INFO(isa_name(isa) << " " << golden.info.name);
      CHECK(num_different == 0);
    }
  }
}

TEST_CASE("Matmul: every instruction set multiplies every type within the rounding of its sum",
          "[runtime][kernel][golden]") {
  for (const Isa isa : runnable_isas()) {
    for (const GoldenType& golden : golden_types()) {
      const std::vector<float> y = multiply(kernels_for(isa), golden);
      for (std::size_t row = 0; row < golden.rows; ++row) {
        INFO(isa_name(isa) << " " << golden.info.name << " row " << row << ": " << y[row] << " and "
                           << golden.products[row]);
        CHECK(std::abs(y[row] - golden.products[row]) <= tolerance(golden, row));
      }
    }
  }
}
