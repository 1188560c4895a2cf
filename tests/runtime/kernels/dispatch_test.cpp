#include "runtime/kernels/dispatch.h"

#include "tests/runtime/kernels/kernel_cases.h"

#include <algorithm>

using namespace kvasir::runtime;
using namespace kvasir::runtime::testing;

TEST_CASE("dispatch: the scalar set always runs and the best set is one that runs",
          "[runtime][kernel]") {
  const auto isas = runnable_isas();
  REQUIRE(isas.front() == Isa::kScalar);
  CHECK(best_isa() == isas.back());
}

TEST_CASE("dispatch: a table says which set it is and names lead back to sets",
          "[runtime][kernel]") {
  for (const Isa isa : compiled_isas()) {
    CHECK(isa_from_name(isa_name(isa)) == isa);
  }
  CHECK_FALSE(isa_from_name("neon").has_value());
  CHECK_FALSE(isa_from_name("").has_value());
  for_each_isa([](const KernelTable& table) { CHECK(isa_name(table.isa) == table.name); });
}

TEST_CASE("dispatch: no two sets share code, but AVX-VNNI has AVX2's outside of int8 products",
          "[runtime][kernel]") {
  const auto isas = runnable_isas();
  for (std::size_t i = 0; i + 1 < isas.size(); ++i) {
    const KernelTable& slower = kernels_for(isas[i]);
    const KernelTable& faster = kernels_for(isas[i + 1]);
    const bool shares = slower.isa == Isa::kAvx2 && faster.isa == Isa::kAvxVnni;
    INFO(slower.name << " and " << faster.name);
    CHECK(slower.quant->matmul != faster.quant->matmul);
    CHECK(slower.quant->name != faster.quant->name);
    CHECK((slower.matmul == faster.matmul) == shares);
    CHECK((slower.attention_kernels->attend == faster.attention_kernels->attend) == shares);
    CHECK((slower.exp_shifted == faster.exp_shifted) == shares);
  }
}
