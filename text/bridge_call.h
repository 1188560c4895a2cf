// What every C++ face of text/bridge does the same way: views, ownership, and status to Error.
// It knows the ABI's shapes and nothing of tokenizers or templates.
#pragma once

#include "text/bridge/kvasir_text_bridge.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::text {

/// Borrows; `text` must outlive the call.
inline kvasir_text_view view_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// Owns bytes of the bridge and frees them there.
class BridgeBytes {
 public:
  BridgeBytes() = default;
  ~BridgeBytes() { kvasir_text_bytes_free(bytes_); }
  BridgeBytes(const BridgeBytes&) = delete;
  BridgeBytes& operator=(const BridgeBytes&) = delete;

  /// Where a bridge call writes; once per object.
  kvasir_text_bytes* out() { return &bytes_; }
  [[nodiscard]] std::string str() const {
    return {reinterpret_cast<const char*>(bytes_.data), bytes_.size};
  }

 private:
  kvasir_text_bytes bytes_{nullptr, 0};
};

}  // namespace kvasir::text
