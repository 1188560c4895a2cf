// The hash that keeps KV blocks of different models apart. It is no cryptographic digest: two files
// that someone made to collide would collide.
#include "runtime/model/model_config.h"
#include "runtime/worker_team.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace kvasir::runtime {
namespace {

// Odd constants without structure: the first bits of the fractional parts of the square roots of 2,
// 3, 5 and 7.
constexpr std::array<std::uint64_t, 4> kMultipliers{0x6A09E667F3BCC909, 0xBB67AE8584CAA73B,
                                                    0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1};

std::uint64_t mix(std::uint64_t state, std::uint64_t word, std::uint64_t multiplier) {
  return std::rotl(state ^ word, 29) * multiplier;
}

std::uint64_t finish(std::uint64_t state) {
  state ^= state >> 32;
  state *= kMultipliers[0];
  state ^= state >> 29;
  state *= kMultipliers[1];
  return state ^ (state >> 32);
}

class Hasher {
 public:
  void add(std::uint64_t word) { state_ = finish(mix(state_, word, kMultipliers[2])); }
  void add(double value) { add(std::bit_cast<std::uint64_t>(value)); }

  /// The length goes in too, so that neighbouring fields cannot run together.
  void add_bytes(std::span<const std::byte> bytes) {
    add(std::uint64_t{bytes.size()});
    add(digest(bytes));
  }
  void add_text(std::string_view text) { add_bytes(std::as_bytes(std::span(text))); }

  [[nodiscard]] std::uint64_t value() const { return state_; }

  // Four lanes of words, so that the multiplications overlap: the weights are read at memory speed.
  static std::uint64_t digest(std::span<const std::byte> bytes) {
    std::array<std::uint64_t, 4> lanes = kMultipliers;
    std::size_t position = 0;
    while (position < bytes.size()) {
      std::array<std::uint64_t, 4> words{};
      const std::size_t num_bytes = std::min(sizeof(words), bytes.size() - position);
      std::memcpy(words.data(), bytes.data() + position, num_bytes);
      for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        lanes[lane] = mix(lanes[lane], words[lane], kMultipliers[lane]);
      }
      position += num_bytes;
    }
    std::uint64_t folded = 0;
    for (const std::uint64_t lane : lanes) {
      folded = finish(folded ^ lane);
    }
    return folded;
  }

 private:
  std::uint64_t state_ = 0;
};

void add_config(Hasher& hasher, const ModelConfig& config) {
  hasher.add_text(config.architecture);
  for (const std::uint32_t size :
       {config.num_layers, config.width, config.ffn_width, config.num_heads, config.num_kv_heads,
        config.head_dim, config.vocab_size}) {
    hasher.add(std::uint64_t{size});
  }
  hasher.add(double{config.rms_epsilon});
  hasher.add(double{config.attention_scale()});
  for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
    hasher.add(std::uint64_t{config.kind_index(layer)});
  }
  for (const LayerKind& kind : config.layer_kinds) {
    hasher.add(std::uint64_t{kind.window_tokens});
    hasher.add(std::uint64_t{kind.rope.dims});
    hasher.add(static_cast<std::uint64_t>(kind.rope.pairs));
    hasher.add(double{kind.rope.magnitude});
    for (const double frequency : kind.rope.inverse_frequency) {
      hasher.add(frequency);
    }
  }
}

void add_tensor(Hasher& hasher, const GgufTensor& tensor, std::uint64_t digest) {
  hasher.add_text(tensor.name);
  hasher.add(static_cast<std::uint64_t>(tensor.type));
  hasher.add(std::uint64_t{tensor.dims.size()});
  for (const std::uint64_t dim : tensor.dims) {
    hasher.add(dim);
  }
  hasher.add(std::uint64_t{tensor.data.size()});
  hasher.add(digest);
}

/// Of each tensor's bytes, in file order. Pages are given back as soon as they were read, so that
/// not the whole file lies in memory at once.
std::vector<std::uint64_t> tensor_digests(const GgufFile& file, std::uint32_t num_threads) {
  const std::vector<GgufTensor>& tensors = file.tensors();
  std::vector<std::uint64_t> digests(tensors.size());
  WorkerTeam team(num_threads);
  team.run([&](std::uint32_t worker) {
    for (std::size_t i = worker; i < tensors.size(); i += num_threads) {
      digests[i] = Hasher::digest(tensors[i].data);
      file.release_pages(tensors[i].data);
    }
  });
  return digests;
}

}  // namespace

std::uint64_t model_hash(const GgufFile& file, const ModelConfig& config,
                         std::uint32_t num_threads) {
  Hasher hasher;
  add_config(hasher, config);
  const std::vector<std::uint64_t> digests = tensor_digests(file, num_threads);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    add_tensor(hasher, file.tensors()[i], digests[i]);
  }
  return hasher.value();
}

}  // namespace kvasir::runtime
