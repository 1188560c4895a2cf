// A folder of a test's own, gone with everything in it at the end of the test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvasir::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "kvasir-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder");
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  /// Writes the file anew and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_of(name), std::ios::binary | std::ios::trunc) << bytes;
    return path_of(name);
  }

 private:
  std::string path_;
};

}  // namespace kvasir::testing
