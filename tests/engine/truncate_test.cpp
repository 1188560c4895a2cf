// The tables at the manager's level over a real arena: tokens that were computed and taken back (as
// rejected draft tokens are) leave nothing behind in what is computed in their place.
#include "kvcache/kv_cache_manager.h"
#include "runtime/kernels/dispatch.h"
#include "tests/engine/model_engine.h"
#include "tests/runtime/decoder/run_sequences.h"
#include "tests/support/catch.h"

#include <bit>
#include <optional>
#include <vector>

using namespace kvasir;
using namespace kvasir::engine::test;

namespace {

constexpr std::uint32_t kNumBlocks = 128;
constexpr std::uint32_t kChunk = 24;
constexpr SequenceId kId{1};

kvcache::KvGeometry geometry_of(const NamedModel& model) {
  kvcache::KvGeometry geometry =
      model.model->config.kv_geometry(kvcache::KvType::kF16, kBlockTokens);
  geometry.largest_chunk = kChunk;
  return geometry;
}

bool slides(const NamedModel& model, std::uint32_t from, std::uint32_t to) {
  const kvcache::KvGeometry geometry = geometry_of(model);
  for (std::size_t group = 0; group < geometry.groups.size(); ++group) {
    if (geometry.first_visible_stripe(group, from) != geometry.first_visible_stripe(group, to)) {
      return true;
    }
  }
  return false;
}

/// One sequence, driven by hand.
class ByHand {
 public:
  explicit ByHand(const NamedModel& model)
      : storage_(geometry_of(model), kNumBlocks),
        executor_({.num_threads = 1,
                   .max_step_tokens = kChunk,
                   .max_sequences = 1,
                   .max_context_tokens = 512,
                   .isa = runtime::best_isa()},
                  model.model->config, model.model->weights, storage_),
        kv_({.geometry = storage_.geometry(), .num_blocks = kNumBlocks}),
        hashes_(kv_.new_hash_chain(0)) {
    runtime::test::fill_with_nan(storage_);
    executor_.keep_logits(true);
    request_.stop.max_tokens = 1000;
    request_.sampling.temperature = 0.0F;
  }

  /// Begins a sequence with what is cached of its tokens.
  std::uint32_t open(std::vector<TokenId> tokens) {
    tokens_ = std::move(tokens);
    hashes_ = kv_.new_hash_chain(0);
    hashes_.extend(tokens_);
    num_computed_ = kv_.match_prefix(known()).tokens;
    kv_.admit(kId, known(), num_computed_);
    return num_computed_;
  }
  void close() { (void)kv_.evict(kId, known()); }

  /// Computes up to `end` tokens, and gives the bits of the logits of the last.
  std::vector<std::uint32_t> compute_to(std::uint32_t end) {
    while (num_computed_ < end) step(std::min(end - num_computed_, kChunk));
    std::vector<std::uint32_t> bits;
    for (const float logit : executor_.kept_logits(executor_.num_kept_logits() - 1)) {
      bits.push_back(std::bit_cast<std::uint32_t>(logit));
    }
    return bits;
  }

  /// Forgets all tokens past the first `num_tokens`, and goes on with others.
  void replace_from(std::uint32_t num_tokens, const std::vector<TokenId>& tokens) {
    kv_.truncate(kId, num_tokens);
    num_computed_ = num_tokens;
    tokens_.resize(num_tokens);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    hashes_ = kv_.new_hash_chain(0);
    hashes_.extend(tokens_);
    kv_.check_integrity();
  }
  [[nodiscard]] const std::vector<TokenId>& tokens() const { return tokens_; }

 private:
  [[nodiscard]] kvcache::HashedTokens known() const { return {tokens_, hashes_}; }

  void step(std::uint32_t num_tokens) {
    const auto stripes =
        static_cast<std::uint32_t>(kv_.geometry().stripes_for(num_computed_ + num_tokens));
    kv_.grow(kId, stripes - kv_.num_stripes(kId));
    kv_.check_may_write(kId, num_tokens);
    runtime::Batch batch;
    batch.copies = kv_.copies(kId);
    batch.num_tokens = num_tokens;
    runtime::BatchChunk chunk;
    chunk.sequence = kId;
    chunk.first_position = num_computed_;
    chunk.num_tokens = num_tokens;
    chunk.first_logits_row = num_tokens - 1;
    chunk.tokens = tokens_;
    chunk.num_prompt_tokens = static_cast<std::uint32_t>(tokens_.size());
    chunk.request = &request_;
    for (std::size_t group = 0; group < kv_.geometry().groups.size(); ++group) {
      chunk.block_tables[group] = kv_.block_table(kId, group);
    }
    batch.chunks.push_back(chunk);
    REQUIRE(executor_.execute(batch).has_value());
    num_computed_ += num_tokens;
    kv_.commit(kId, known(), num_computed_);
    kv_.check_integrity();
  }

  kvcache::KvStorage storage_;
  runtime::CpuExecutor executor_;
  kvcache::KvCacheManager kv_;
  kvcache::HashChain hashes_;
  Request request_;
  std::vector<TokenId> tokens_;
  std::uint32_t num_computed_ = 0;
};

std::vector<std::uint32_t> cold_logits(const NamedModel& model, const std::vector<TokenId>& tokens,
                                       std::uint32_t end) {
  ByHand cold(model);
  REQUIRE(cold.open(tokens) == 0);
  return cold.compute_to(end);
}

}  // namespace

TEST_CASE("Truncation: what is computed in place of tokens taken back is what it is cold",
          "[engine]") {
  const NamedModel& model = small_models()[GENERATE(range(std::size_t{0}, small_models().size()))];
  INFO(model.name);
  // A few tokens past each of several lengths, as a draft would be; over a stripe's border or not.
  for (std::uint32_t kept = 2 * kBlockTokens + 1; kept < 3 * kBlockTokens; ++kept) {
    for (const std::uint32_t rejected : {1U, 5U}) {
      if (kept / kBlockTokens != (kept + rejected) / kBlockTokens) continue;  // published: it stays
      if (slides(model, kept, kept + rejected)) continue;  // what it saw before is given back
      CAPTURE(kept, rejected);
      ByHand sequence(model);
      REQUIRE(sequence.open(random_tokens(1, kept + rejected)) == 0);
      (void)sequence.compute_to(kept + rejected);
      sequence.replace_from(kept, random_tokens(2, 40));
      CHECK(sequence.compute_to(kept + 30) == cold_logits(model, sequence.tokens(), kept + 30));
      sequence.close();

      // And nothing of them is found later, by either list of tokens.
      for (const std::vector<TokenId>& tokens :
           {random_tokens(1, 90), std::vector<TokenId>(sequence.tokens())}) {
        CHECK(sequence.open(tokens) <= kept + 30);
        const auto end = static_cast<std::uint32_t>(tokens.size());
        CHECK(sequence.compute_to(end) == cold_logits(model, tokens, end));
        sequence.close();
      }
    }
  }
}
