// Where the layers of a model find their keys and values: the places that the geometry gives them,
// looked up once, and the block of a chunk that holds a stripe of a layer.
#pragma once

#include "kvcache/kv_geometry.h"
#include "runtime/batch.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir::runtime {

class LayerTables {
 public:
  explicit LayerTables(const kvcache::KvGeometry& geometry) {
    for (std::uint32_t layer = 0; layer < geometry.num_layers(); ++layer) {
      const kvcache::LayerPlace place = geometry.place(layer);
      places_.push_back({place, geometry.blocks_per_stripe(place.group)});
    }
  }
  [[nodiscard]] static std::uint64_t bytes(std::uint32_t num_layers) {
    return std::uint64_t{num_layers} * sizeof(Place);
  }

  [[nodiscard]] std::uint32_t group(std::uint32_t layer) const {
    return places_[layer].place.group;
  }
  [[nodiscard]] std::uint32_t layer_in_block(std::uint32_t layer) const {
    return places_[layer].place.layer_in_block;
  }
  [[nodiscard]] BlockId block(std::uint32_t layer, const BatchChunk& chunk,
                              std::size_t stripe) const {
    const Place& place = places_[layer];
    return chunk.block_tables[place.place.group]
                             [stripe * place.blocks_per_stripe + place.place.block_in_stripe];
  }

 private:
  struct Place {
    kvcache::LayerPlace place;
    std::uint32_t blocks_per_stripe = 1;
  };
  std::vector<Place> places_;  // [layers]
};

}  // namespace kvasir::runtime
