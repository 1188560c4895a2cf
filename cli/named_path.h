// A path with the place that named it, so that errors about the file can say both. Nothing is
// opened here.
#pragma once

#include <string>

namespace kvasir::cli {

struct NamedPath {
  std::string path;
  std::string origin;  // "environment: KVASIR_MODEL", as config::origin_of has it
};

}  // namespace kvasir::cli
