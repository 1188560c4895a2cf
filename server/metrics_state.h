// The part of GET /metrics that is read and not counted: the engine's published status, the model
// and the process, as families of the Prometheus library.
#pragma once

#include "server/metrics.h"

#include <prometheus/labels.h>
#include <prometheus/metric_family.h>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::server {

/// `model_labels` go on every sample.
[[nodiscard]] std::vector<prometheus::MetricFamily> engine_families(
    const engine::EngineStatus& status, const ModelInfo& model,
    const prometheus::Labels& model_labels);
/// Build and model, each a gauge that is always 1 with labels that say what runs.
[[nodiscard]] std::vector<prometheus::MetricFamily> info_families(
    const Scrape& scrape, const ModelInfo& model, const prometheus::Labels& model_labels);
[[nodiscard]] std::vector<prometheus::MetricFamily> process_families(const ModelInfo& model);

[[nodiscard]] prometheus::MetricFamily gauge_family(std::string name, std::string help,
                                                    double value,
                                                    const prometheus::Labels& labels = {});

}  // namespace kvasir::server
