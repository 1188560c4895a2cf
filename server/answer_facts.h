// Numbers and texts that an answer shows at both doors, as rows: what each is called, where it is
// kept and what it means. JSON, protobuf, docs/API.md and the OpenAPI document are made from the
// rows, so that no door can show less than another. What the facts are is of those who fill them.
#pragma once

#include "server/cancel_causes.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvasir::server {

struct LayerGroupFacts;
/// One for each of kCancelCauses, and shown by its name.
using CauseCounts = std::array<std::uint64_t, kCancelCauses.size()>;

/// Where a record keeps a fact, by its type.
template <typename Record>
using FactMember =
    std::variant<std::uint64_t Record::*, double Record::*, bool Record::*, std::string Record::*,
                 std::vector<LayerGroupFacts> Record::*, CauseCounts Record::*>;

template <typename Record>
struct FactRow {
  std::string_view name;  // in JSON and in the message
  FactMember<Record> member;
  std::string_view meaning;  // one sentence or more
};

/// Calls `visit(name, value)` for each row, in order.
template <typename Record, typename Visit>
void for_each_fact(const Record& record, std::span<const FactRow<Record>> rows,
                   const Visit& visit) {
  for (const FactRow<Record>& row : rows)
    std::visit([&](auto member) { visit(row.name, record.*member); }, row.member);
}

}  // namespace kvasir::server
