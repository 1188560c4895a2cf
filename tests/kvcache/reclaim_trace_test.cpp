// What reclaiming by cost is worth: the same requests, one after another, against caches that
// reclaim by cost and by last use alone. Chats whose turns follow each other at a distance run
// beside prompts that nobody asks for again. docs/adr/0017 has the numbers that are printed by
// KVASIR_TRACE=1 kvasir_tests_kvcache '[trace]'.
#include "core/rng.h"
#include "tests/kvcache/kv_text.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace kvasir::kvcache {
namespace {

using namespace testing_kv;

constexpr std::uint32_t kBlock = 32;

/// Requests in the order in which they come; a conversation grows from turn to turn.
class Trace {
 public:
  struct Mix {
    std::uint32_t num_chats = 12;
    std::uint32_t chat_per_mille = 400;  // of requests; the others are asked once
    std::uint32_t burst = 1;             // one-shot prompts that come together
    std::uint32_t shortest_shot = 200;
    std::uint32_t longest_shot = 1200;
  };
  Trace(const Mix& mix, std::uint64_t seed) : mix_(mix), seed_(seed), chats_(mix.num_chats) {}

  /// The next prompt, and in `answer_tokens` how many are generated.
  std::vector<TokenId> next(std::uint32_t& answer_tokens) {
    answer_tokens = 40 + below(120);
    if (burst_left_ == 0 && below(1000) >= mix_.chat_per_mille) burst_left_ = mix_.burst;
    if (burst_left_ > 0) {
      --burst_left_;
      return shot();
    }
    current_ = below(mix_.num_chats);
    std::vector<TokenId>& chat = chats_[current_];
    // A chat that has grown long is over, and another begins: with one of three system prompts.
    if (chat.size() > 2400) chat.clear();
    if (chat.empty()) chat = count_from(100'000 * (1 + below(3)), 220);
    append(chat, 20 + below(80));
    in_chat_ = true;
    return chat;
  }

  /// What was generated becomes part of the conversation.
  void answered(const std::vector<TokenId>& all) {
    if (in_chat_) chats_[current_] = all;
    in_chat_ = false;
  }

  [[nodiscard]] TokenId fresh() { return 1'000'000 + static_cast<TokenId>(num_fresh_++); }

 private:
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(mix64(seed_ * 7'919 + draws_++) % bound);
  }
  void append(std::vector<TokenId>& tokens, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) tokens.push_back(fresh());
  }
  std::vector<TokenId> shot() {
    std::vector<TokenId> tokens = count_from(500'000, 50);  // "Summarise the following:"
    append(tokens, mix_.shortest_shot + below(mix_.longest_shot - mix_.shortest_shot));
    return tokens;
  }

  Mix mix_;
  std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  std::uint64_t num_fresh_ = 0;
  std::uint32_t burst_left_ = 0;
  std::uint32_t current_ = 0;
  bool in_chat_ = false;
  std::vector<std::vector<TokenId>> chats_;
};

struct Hits {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t hit_tokens = 0;
};

Hits serve(KvCacheOptions options, ReclaimPolicy policy, const Trace::Mix& mix, std::uint64_t seed,
           std::uint64_t num_requests) {
  options.reclaim_policy = policy;
  KvCacheManager kv(options);
  Trace trace(mix, seed);
  Hits hits;
  for (std::uint64_t request = 1; request <= num_requests; ++request) {
    std::uint32_t answer_tokens = 0;
    Text text(kv, trace.next(answer_tokens));
    const PrefixMatch match = kv.match_prefix(text.hashed());
    hits.prompt_tokens += text.size();
    hits.hit_tokens += match.tokens;
    const SequenceId id{request};
    kv.admit(id, text.hashed(), match.tokens);
    std::uint32_t done = match.tokens;
    for (std::uint32_t left = answer_tokens;; --left) {
      while (done < text.size()) {
        const std::uint32_t end = std::min(text.size(), done + kv.geometry().largest_chunk);
        kv.grow(id, stripes_for(kv, end) - kv.num_stripes(id));
        kv.commit(id, text.hashed(), end);
        done = end;
      }
      if (left == 0) break;
      text.append(trace.fresh());
    }
    (void)kv.evict(id, text.hashed());
    trace.answered(text.tokens);
  }
  kv.check_integrity();
  return hits;
}

KvCacheOptions cache_of(std::vector<KvLayerGroup> groups, std::uint32_t tokens) {
  KvCacheOptions options = cache_options(std::move(groups), 1, 256);
  options.geometry.block_tokens = kBlock;
  options.num_blocks = tokens / kBlock * options.geometry.blocks_per_stripes();
  return options;
}

}  // namespace

TEST_CASE("Reclaim: by cost finds more of chats beside prompts that are asked once",
          "[kvcache][trace]") {
  struct Row {
    const char* name;
    std::vector<KvLayerGroup> groups;
    std::uint32_t cache_tokens;
    Trace::Mix mix;
    bool is_gain = true;
  };
  const std::vector<KvLayerGroup> plain{layers(1, 0)};
  const std::vector<KvLayerGroup> gemma{layers(5, 512), layers(1, 0)};
  const Trace::Mix spread{};
  const Trace::Mix bursts{.chat_per_mille = 900, .burst = 12};
  const Trace::Mix chats{.num_chats = 24, .chat_per_mille = 1000};
  const std::vector<Row> rows{
      {"one group, 8 k tokens, spread", plain, 8192, spread},
      {"one group, 16 k tokens, spread", plain, 16384, spread},
      {"one group, 16 k tokens, bursts of 12", plain, 16384, bursts},
      {"one group, 16 k tokens, chats only", plain, 16384, chats, false},
      {"5:1 windows of 512, 8 k tokens, spread", gemma, 8192, spread},
      {"5:1 windows of 512, 8 k tokens, bursts of 12", gemma, 8192, bursts},
      {"5:1 windows of 512, 8 k tokens, chats only", gemma, 8192, chats},
  };
  const bool prints = std::getenv("KVASIR_TRACE") != nullptr;
  for (const Row& row : rows) {
    CAPTURE(row.name);
    std::uint64_t by_cost = 0;
    std::uint64_t by_use = 0;
    std::uint64_t all = 0;
    for (std::uint64_t seed = 1; seed <= (prints ? 5U : 2U); ++seed) {
      const std::uint64_t num_requests = prints ? 2000 : 400;
      const KvCacheOptions options = cache_of(row.groups, row.cache_tokens);
      const Hits cost = serve(options, ReclaimPolicy::kCostAware, row.mix, seed, num_requests);
      by_cost += cost.hit_tokens;
      by_use += serve(options, ReclaimPolicy::kLeastRecent, row.mix, seed, num_requests).hit_tokens;
      all += cost.prompt_tokens;
    }
    if (prints) {
      std::printf("%-46s %5.1f %% by cost, %5.1f %% by last use\n", row.name,
                  100.0 * static_cast<double>(by_cost) / static_cast<double>(all),
                  100.0 * static_cast<double>(by_use) / static_cast<double>(all));
    }
    if (row.is_gain) {
      CHECK(by_cost > by_use);
    } else {
      CHECK(by_cost * 10 > by_use * 9);  // see the ADR
    }
  }
}

}  // namespace kvasir::kvcache
