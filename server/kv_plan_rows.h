// The calculator's rows of the field table, which they would make too long.
#pragma once

#include "server/field_table.h"

#include <vector>

namespace kvasir::server {

void add_plan_rows(std::vector<FieldRow>& rows);

}  // namespace kvasir::server
