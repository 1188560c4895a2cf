// A world of sequences that come, grow, fork and go at random over a manager, and a model of truth
// beside it: what every slot of every block was last written with. Keys and values are stood for by
// a number that depends on salt, group and all tokens up to the slot's.
#pragma once

#include "core/rng.h"
#include "kvcache/kv_cache_manager.h"
#include "tests/kvcache/kv_text.h"

#include <cstdint>
#include <map>
#include <vector>

namespace kvasir::kvcache::testing_kv {

/// How often the hard cases happened, so that a test can see that they did.
struct WorldTally {
  std::uint64_t hits = 0;
  std::uint64_t partial_hits = 0;
  std::uint64_t whole_hits = 0;  // taken without the copy that was offered
  std::uint64_t forks = 0;
  std::uint64_t copies = 0;
  std::uint64_t failures = 0;
  std::uint64_t audits = 0;
  std::uint64_t audited_tokens = 0;
  std::uint64_t planted = 0;
};

class World {
 public:
  World(const KvCacheOptions& options, std::uint64_t seed);

  /// One random thing happens.
  void act();
  /// Everything that must hold, does.
  void check();
  /// Everybody leaves, and all blocks are free.
  void end();
  [[nodiscard]] const WorldTally& tally() const { return tally_; }
  [[nodiscard]] const KvCacheManager& kv() const { return kv_; }

 private:
  struct Live {
    Text text;
    std::uint64_t salt = 0;
    std::uint32_t computed = 0;
  };
  using LiveMap = std::map<std::uint64_t, Live>;

  void start(std::uint32_t count);
  void fork(const Live& from, SequenceId source);
  void compute(SequenceId id, Live& one, std::uint32_t num_tokens);
  void fail(LiveMap::iterator which);
  void truncate(SequenceId id, const Live& one);
  void leave(LiveMap::iterator which);
  void audit();

  [[nodiscard]] std::uint32_t below(std::size_t bound);
  [[nodiscard]] std::vector<TokenId> make_tokens();
  [[nodiscard]] bool has_room(std::uint32_t num_stripes) const;
  void copy(SequenceId id);
  void write(SequenceId id, const Live& one, std::uint32_t first, std::uint32_t end, bool nonsense);
  void check_seen(SequenceId id, const Live& one, std::uint32_t position);
  void compare(SequenceId id, const AuditStep& step, bool& plant);
  [[nodiscard]] std::uint64_t& slot(SequenceId id, std::size_t group, std::size_t block_in_stripe,
                                    std::uint32_t position);
  [[nodiscard]] std::uint64_t truth(const Live& one, std::size_t group, std::size_t block_in_stripe,
                                    std::uint32_t position) const;
  void check_counts();

  std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  std::uint64_t last_id_ = 0;
  KvCacheManager kv_;
  LiveMap live_;
  std::vector<Live> remembered_;      // what others may begin like
  std::vector<std::uint64_t> slots_;  // [num_blocks][kSlots]
  std::uint64_t closed_taken_ = 0;    // by those who have left
  std::uint64_t closed_returned_ = 0;
  WorldTally tally_;
};

}  // namespace kvasir::kvcache::testing_kv
