// Rename is atomic on one file system, hence a temporary file in the same folder.
#include "cli/ready_file.h"

#include "cli/startup_error.h"
#include "config/load.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvasir::cli {
namespace {

[[noreturn]] void refuse(const NamedPath& file, const std::string& what) {
  throw StartupError(file.origin + ": " + config::quoted(file.path) + " " + what +
                     "; allowed: a file in a folder that can be written");
}

}  // namespace

void check_ready_file(const NamedPath& file) {
  const std::filesystem::path path(file.path);
  std::filesystem::path folder = path.parent_path();
  if (folder.empty()) folder = ".";
  std::error_code error;
  if (std::filesystem::is_directory(path, error) || !path.has_filename()) {
    refuse(file, "is a folder");
  }
  if (!std::filesystem::exists(folder, error)) refuse(file, "is in a folder that does not exist");
  if (!std::filesystem::is_directory(folder, error)) refuse(file, "is not in a folder");
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(file, std::string("cannot be made: ") + std::strerror(errno));
  }
}

ReadyFile::ReadyFile(NamedPath file, std::uint16_t http_port, std::uint16_t grpc_port,
                     std::int64_t pid)
    : file_(std::move(file)) {
  const std::string temporary = file_.path + "." + std::to_string(pid) + ".tmp";
  errno = 0;
  std::ofstream out(temporary, std::ios::trunc);
  out << R"({"http_port":)" << http_port << R"(,"grpc_port":)" << grpc_port << R"(,"pid":)" << pid
      << "}\n";
  out.close();
  if (!out || std::rename(temporary.c_str(), file_.path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    std::remove(temporary.c_str());
    refuse(file_, "cannot be written: " + why);
  }
}

ReadyFile::~ReadyFile() { std::remove(file_.path.c_str()); }

}  // namespace kvasir::cli
