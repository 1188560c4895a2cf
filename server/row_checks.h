// Each field of a request by itself, against its row of the field table: ranges, counts, bytes,
// ids. What fields must be together is validate's.
#pragma once

#include "core/result.h"
#include "server/field_table.h"
#include "server/validate.h"

#include <optional>
#include <string>
#include <utility>

namespace kvasir::server {

/// The first failure of a request: checks after it do nothing.
class Verdict {
 public:
  /// "`param` must be `allowed`, not `value`".
  void require(bool holds, const std::string& param, const std::string& allowed,
               const std::string& value) {
    if (!holds)
      fail(ErrorCode::kInvalidValue, param, param + " must be " + allowed + ", not " + value);
  }
  void fail(ErrorCode code, const std::string& param, std::string message) {
    if (!error_) error_ = Error{code, std::move(message), param};
  }
  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] Result<void> take() {
    if (error_) return tl::unexpected<Error>(std::move(*error_));
    return {};
  }

 private:
  std::optional<Error> error_;
};

/// `Fields` is any of the structs of request_fields.h.
template <typename Fields>
void check_rows(const Fields& fields, const ValidationBounds& bounds, Verdict& verdict);

extern template void check_rows(const CompletionFields&, const ValidationBounds&, Verdict&);
extern template void check_rows(const ChatFields&, const ValidationBounds&, Verdict&);
extern template void check_rows(const TokenizeFields&, const ValidationBounds&, Verdict&);
extern template void check_rows(const DetokenizeFields&, const ValidationBounds&, Verdict&);
extern template void check_rows(const PlanFields&, const ValidationBounds&, Verdict&);

}  // namespace kvasir::server
