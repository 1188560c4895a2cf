// Rows of facts as fields of a message, by their names.
#pragma once

#include "kvasir/v1/inference.pb.h"
#include "server/kv_receipt.h"
#include "server/kv_status.h"

namespace kvasir::server {

[[nodiscard]] v1::GetStatusResponse status_message(const KvStatus& status);
void fill_kv_receipt(const KvReceipt& receipt, v1::KvReceipt& message);

}  // namespace kvasir::server
