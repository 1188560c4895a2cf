// A good model file cut and damaged at random: whatever comes out, the reader ends with a verdict
// and never reads outside the file. Run under ASan and UBSan this is a small fuzzer; the seed makes
// each case repeatable.
#include "runtime/model/gguf_reader.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"
#include "tests/runtime/model/small_model.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <sys/resource.h>

using namespace kvasir::runtime;
using kvasir::runtime::test::small_model;
using kvasir::runtime::test::verdict_on;
using kvasir::test::GgufWriter;
using kvasir::test::MemoryFile;

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kNumMutations = 20'000;
constexpr std::uint64_t kSeed = 3;
/// No damage makes the reader take memory that the file does not have.
constexpr long kMaxGrowthKib = 16 * 1024;

long peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/// A model whose last tensor ends at the end of a page, so that a read past the file has no page to
/// land on.
std::string model_of_whole_pages() {
  GgufWriter writer = small_model();
  writer.set_text("general.description", "");
  const std::size_t missing = kPageBytes - writer.bytes().size() % kPageBytes;
  // The data starts at a multiple of 32: what is added has to be one too.
  writer.set_text("general.description", std::string(missing / 32 * 32, 'd'));
  std::string bytes = writer.bytes();
  REQUIRE(bytes.size() % kPageBytes == 0);
  REQUIRE(verdict_on(bytes).empty());
  return bytes;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  /// One to four changes, most of them in front of the data section.
  void damage(std::string& bytes, std::size_t head_bytes) {
    const std::uint64_t changes = 1 + below(4);
    for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
      const std::size_t limit = below(8) == 0 ? bytes.size() : std::min(head_bytes, bytes.size());
      change_at(bytes, static_cast<std::size_t>(below(limit)));
    }
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  void change_at(std::string& bytes, std::size_t at) {
    const auto other = static_cast<std::size_t>(below(bytes.size()));
    const auto length = static_cast<std::size_t>(1 + below(32));
    switch (below(9)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {  // a number that is extreme for a count, a length, an offset or a dimension
        static constexpr std::uint64_t kExtremes[] = {
            ~0ULL,      0,          1ULL << 63, (1ULL << 63) - 1, 1ULL << 62,
            1ULL << 32, 0xFFFFFFFF, 1ULL << 31, 1ULL << 30,       1};
        kvasir::test::ByteWriter number;
        number.number(kExtremes[below(std::size(kExtremes))]);
        overwrite(bytes, at, number.bytes().substr(0, below(2) == 0 ? 4 : 8));
        break;
      }
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(at, bytes.substr(other, length));
        break;
      case 5:
        overwrite(bytes, at, bytes.substr(other, length));
        break;
      case 6:  // two stretches change places
        if (const std::size_t a = std::min(at, other), b = std::max(at, other); b > a) {
          const std::size_t size = std::min({b - a, bytes.size() - b, std::size_t{below(600)}});
          std::swap_ranges(bytes.begin() + offset(a), bytes.begin() + offset(a + size),
                           bytes.begin() + offset(b));
        }
        break;
      case 7:  // a larger stretch is gone, often a whole section
        bytes.erase(at, static_cast<std::size_t>(below(bytes.size())));
        break;
      default:
        bytes.resize(at);
    }
  }

  static std::ptrdiff_t offset(std::size_t at) { return static_cast<std::ptrdiff_t>(at); }

  static void overwrite(std::string& bytes, std::size_t at, const std::string& with) {
    bytes.replace(at, std::min(with.size(), bytes.size() - at), with, 0,
                  std::min(with.size(), bytes.size() - at));
  }

  std::mt19937_64 random_;
};

/// Everything that is done with a file at start, every byte of every tensor read. True when it is
/// taken.
bool read_whole(const std::string& path) {
  const auto file = GgufFile::open(path);
  if (!file) {
    REQUIRE(file.error().message.find('\n') == std::string::npos);
    return false;
  }
  const auto config = read_model_config(**file);
  if (!config) return false;
  static_cast<void>(model_hash(**file, *config, 1));
  return read_weights(**file, *config).has_value();
}

}  // namespace

TEST_CASE("GGUF: a file cut anywhere is refused", "[runtime][hostile]") {
  const std::string bytes = model_of_whole_pages();
  const MemoryFile file;
  const std::size_t step = (bytes.size() - kPageBytes) / 64;
  REQUIRE(step > 0);
  std::size_t num_cuts = 0;
  for (std::size_t size = 0; size < bytes.size(); size += size < kPageBytes ? 1 : step) {
    file.write(std::string_view(bytes).substr(0, size));
    const auto opened = GgufFile::open(file.path());
    INFO("cut to " << size << " of " << bytes.size() << " bytes");
    REQUIRE_FALSE(opened);
    REQUIRE(opened.error().message.rfind(file.path() + ": byte ", 0) == 0);
    ++num_cuts;
  }
  CHECK(num_cuts >= kPageBytes + 64);
}

TEST_CASE("GGUF: randomly damaged files never break the reader", "[runtime][hostile]") {
  const std::string good = model_of_whole_pages();
  const std::size_t head_bytes = good.size() - good.size() / 2;
  const MemoryFile file;
  Mutator mutator(kSeed);
  int num_taken = 0;
  const long before_kib = peak_kib();
  for (int i = 0; i < kNumMutations; ++i) {
    std::string bytes = good;
    mutator.damage(bytes, head_bytes);
    file.write(bytes);
    INFO("seed " << kSeed << ", mutation " << i);
    num_taken += read_whole(file.path()) ? 1 : 0;
  }
  CHECK(peak_kib() - before_kib < kMaxGrowthKib);
  // Damage in names of the vocabulary or in the weights is no error; most of the rest is.
  CHECK(num_taken > kNumMutations / 100);
  CHECK(num_taken < kNumMutations * 9 / 10);
}
