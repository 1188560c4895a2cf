// Which layers of a model see a window, and how each kind rotates: what a file says of it, and what
// its family implies where it says nothing.
#pragma once

#include "runtime/model/gguf_reader.h"
#include "runtime/model/metadata_reader.h"
#include "runtime/model/model_config.h"

namespace kvasir::runtime {

/// Sets config.layer_kinds and kind_of_layer; the rest of the configuration must be there. Throws
/// MetadataRefused.
void read_layer_kinds(const MetadataReader& reader, const GgufFile& file, ModelConfig& config);

}  // namespace kvasir::runtime
