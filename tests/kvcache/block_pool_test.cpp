// References, and the three states of a block: referenced, kept, empty.
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

TEST_CASE("BlockPool: a kept block is free and not handed out before it is dropped", "[kvcache]") {
  BlockPool pool(2);
  (void)pool.allocate();
  (void)pool.allocate();
  pool.release(BlockId{1}, Content::kKeep);
  CHECK(pool.num_free() == 1);
  CHECK(pool.num_kept() == 1);
  CHECK(pool.num_empty() == 0);
  CHECK(testing::aborts([&] { (void)pool.allocate(); }));
  CHECK(testing::aborts([&] { pool.drop(BlockId{0}); }));
  pool.drop(BlockId{1});
  CHECK(pool.num_free() == 1);
  CHECK(pool.num_kept() == 0);
  CHECK(pool.allocate() == BlockId{1});
}

TEST_CASE("BlockPool: referencing a kept block takes it from the free ones", "[kvcache]") {
  BlockPool pool(2);
  (void)pool.allocate();
  pool.release(BlockId{0}, Content::kKeep);
  pool.reference(BlockId{0});
  CHECK(pool.num_free() == 1);
  CHECK_FALSE(pool.is_kept(BlockId{0}));
  CHECK(pool.references(BlockId{0}) == 1);
  CHECK(testing::aborts([&] { pool.reference(BlockId{1}); }));  // it holds nothing
}

}  // namespace kvasir::kvcache
