// Rows of facts as members of a JSON object.
#pragma once

#include "server/answer_facts.h"
#include "server/http/json_writer.h"
#include "server/kv_receipt.h"
#include "server/kv_status.h"

#include <string>

namespace kvasir::server {

/// {"object":"kv.status",...}
[[nodiscard]] std::string kv_status_body(const KvStatus& status);
/// The object alone, in the place of a value.
void write_kv_receipt(const KvReceipt& receipt, JsonWriter& json);

}  // namespace kvasir::server
