// A bound on memory that many connections share. It only counts; who is over it decides what to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace kvasir::server {

/// Threads: any.
class ByteBudget {
 public:
  explicit ByteBudget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  /// False, and nothing is taken, when the limit would be passed.
  [[nodiscard]] bool take(std::uint64_t bytes) {
    std::uint64_t used = used_bytes_.load();
    do {
      if (bytes > limit_bytes_ - used) return false;  // used never passes the limit
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void give_back(std::uint64_t bytes) { used_bytes_.fetch_sub(bytes); }
  [[nodiscard]] std::uint64_t used_bytes() const { return used_bytes_.load(); }

 private:
  const std::uint64_t limit_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0};
};

/// What one owner holds of a budget, which must outlive it; given back at its end.
class ByteCharge {
 public:
  ByteCharge() = default;
  explicit ByteCharge(ByteBudget& budget) : budget_(&budget) {}
  ~ByteCharge() { release(); }
  ByteCharge(ByteCharge&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteCharge& operator=(ByteCharge&& other) noexcept {
    if (this == &other) return *this;
    release();
    budget_ = std::exchange(other.budget_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  /// False when the budget has no room for it; what is held then stays.
  [[nodiscard]] bool grow_to(std::uint64_t bytes) {
    if (bytes <= bytes_) return true;
    if (budget_ == nullptr || !budget_->take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  void release() {
    if (bytes_ > 0) budget_->give_back(std::exchange(bytes_, 0));
  }

  ByteBudget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvasir::server
