// Lets large allocations of this test program fail for a while, as they do when memory is at its
// end. Nothing else makes the door's own code throw.
#pragma once

#include <cstddef>

namespace kvasir::server::testing {

/// While it lives, every `operator new` of at least so many bytes, on any thread, throws
/// std::bad_alloc. One at a time.
class FailingMemory {
 public:
  explicit FailingMemory(std::size_t least_bytes);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
};

}  // namespace kvasir::server::testing
