// Rename is atomic on one file system, hence a temporary file in the same folder.
#include "cli/ready_file.h"

#include "cli/startup_error.h"
#include "config/load.h"

#include <cstdio>
#include <fstream>
#include <unistd.h>
#include <utility>

namespace kvasir::cli {

ReadyFile::ReadyFile(std::string path, std::uint16_t http_port, std::uint16_t grpc_port,
                     std::int64_t pid)
    : path_(std::move(path)) {
  const std::string temporary = path_ + "." + std::to_string(pid) + ".tmp";
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << R"({"http_port":)" << http_port << R"(,"grpc_port":)" << grpc_port << R"(,"pid":)" << pid
        << "}\n";
    out.close();
    if (!out)
      throw StartupError("--ready-file: " + config::quoted(temporary) + " cannot be written");
  }
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw StartupError("--ready-file: " + config::quoted(path_) + " cannot be written");
  }
}

ReadyFile::~ReadyFile() { std::remove(path_.c_str()); }

}  // namespace kvasir::cli
