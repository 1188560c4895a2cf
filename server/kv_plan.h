// What a client, or the command line, asks of the calculator, judged and made whole: ranges by the
// field table, what must be together, and defaults from the preset or from the served model. The
// arithmetic is kvcache's, the answer's form is kv_plan_json's and server/grpc's.
#pragma once

#include "core/result.h"
#include "kvcache/kv_calculator.h"
#include "server/generate_service.h"
#include "server/request_fields.h"
#include "server/validate.h"

#include <cstdint>
#include <optional>

namespace kvasir::server {

/// Context of a model of which only numbers are known.
inline constexpr std::uint32_t kPlanContextTokens = 4096;

/// What a plan without preset and numbers is of, and what it is served with.
struct PlannedModel {
  kvcache::PlanModel model;
  kvcache::KvType type = kvcache::KvType::kF16;
  std::optional<std::uint64_t> budget_bytes;
  std::uint32_t largest_chunk = 512;
};

/// Errors: kInvalidValue, kMissingParameter, with the field in `param`.
[[nodiscard]] Result<void> validate(const PlanFields& fields, const ValidationBounds& bounds);

/// The plan of fields that were judged; `own` is read only where they name neither preset nor
/// numbers. Errors: those of kvcache::plan_kv.
[[nodiscard]] Result<kvcache::KvPlan> make_plan(const PlanFields& fields, const PlannedModel& own);

/// Judges and plans for a door. Errors: as validate and make_plan; kModelNotFound.
[[nodiscard]] Result<kvcache::KvPlan> served_plan(const PlanFields& fields,
                                                  const GenerateService& service);

}  // namespace kvasir::server
