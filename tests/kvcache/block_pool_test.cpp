// The free list: what is counted, and in which order blocks come back.
#include "kvcache/block_pool.h"

#include "tests/support/aborts.h"
#include "tests/support/catch.h"

namespace kvasir::kvcache {
namespace {

using Content = BlockPool::Content;

}  // namespace

TEST_CASE("BlockPool: hands out every block once", "[kvcache]") {
  BlockPool pool(3);
  CHECK(pool.num_free() == 3);
  CHECK(pool.allocate() == BlockId{0});
  CHECK(pool.allocate() == BlockId{1});
  CHECK(pool.allocate() == BlockId{2});
  CHECK(pool.num_free() == 0);
  CHECK(pool.count_free_list() == 0);
  CHECK(testing::aborts([&] { (void)pool.allocate(); }));
}

TEST_CASE("BlockPool: releasing the last reference makes the block free again", "[kvcache]") {
  BlockPool pool(2);
  const BlockId block = pool.allocate();
  pool.reference(block);
  CHECK(pool.references(block) == 2);
  pool.release(block, Content::kDrop);
  CHECK(pool.num_free() == 1);
  pool.release(block, Content::kDrop);
  CHECK(pool.num_free() == 2);
  CHECK(pool.references(block) == 0);
  CHECK(testing::aborts([&] { pool.release(block, Content::kDrop); }));
}

TEST_CASE("BlockPool: empty blocks are reclaimed first, then the least recently released",
          "[kvcache]") {
  BlockPool pool(4);
  for (int i = 0; i < 4; ++i) (void)pool.allocate();
  pool.release(BlockId{2}, Content::kKeep);
  pool.release(BlockId{0}, Content::kKeep);
  pool.release(BlockId{3}, Content::kDrop);
  CHECK(pool.count_free_list() == 3);
  CHECK(pool.allocate() == BlockId{3});
  CHECK(pool.allocate() == BlockId{2});
  CHECK(pool.allocate() == BlockId{0});
}

TEST_CASE("BlockPool: a referenced block leaves the free list, wherever in it", "[kvcache]") {
  BlockPool pool(3);
  pool.reference(BlockId{1});
  CHECK(pool.num_free() == 2);
  CHECK(pool.count_free_list() == 2);
  CHECK(pool.allocate() == BlockId{0});
  CHECK(pool.allocate() == BlockId{2});
}

TEST_CASE("BlockPool: using a kept block again makes it the most recent", "[kvcache]") {
  BlockPool pool(2);
  for (int i = 0; i < 2; ++i) (void)pool.allocate();
  pool.release(BlockId{0}, Content::kKeep);
  pool.release(BlockId{1}, Content::kKeep);
  pool.reference(BlockId{0});
  pool.release(BlockId{0}, Content::kKeep);
  CHECK(pool.allocate() == BlockId{1});
}

}  // namespace kvasir::kvcache
