#include "core/page_buffer.h"

#include "tests/support/catch.h"

#include <cstdint>
#include <limits>
#include <new>
#include <utility>

using kvasir::PageBuffer;

TEST_CASE("PageBuffer: zeros on a huge page boundary, at least as many as asked for", "[core]") {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{2} << 20, (std::size_t{2} << 20) + 1}) {
    PageBuffer buffer(bytes);
    REQUIRE(buffer.size_bytes() >= bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % (std::size_t{2} << 20) == 0);
    CHECK(buffer.data()[0] == std::byte{0});
    CHECK(buffer.data()[buffer.size_bytes() - 1] == std::byte{0});
    buffer.data()[buffer.size_bytes() - 1] = std::byte{7};
  }
}

TEST_CASE("PageBuffer: moving leaves nothing behind", "[core]") {
  PageBuffer a(100);
  a.data()[5] = std::byte{9};
  const std::byte* place = a.data();
  PageBuffer b(std::move(a));
  CHECK(b.data() == place);
  PageBuffer c;
  CHECK(c.data() == nullptr);
  c = std::move(b);
  CHECK(c.data() == place);
  CHECK(c.data()[5] == std::byte{9});
}

TEST_CASE("PageBuffer: what no address space holds is bad_alloc", "[core]") {
  CHECK_THROWS_AS(PageBuffer(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
  CHECK_THROWS_AS(PageBuffer(std::size_t{1} << 60), std::bad_alloc);
}
