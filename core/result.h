// Expected failures: what a function returns when a request, a file or a limit is at fault and not
// our code. How a code maps to an HTTP or gRPC status is known in one place, server/error_map.
#pragma once

#include <tl/expected.hpp>

#include <string>
#include <utility>

namespace kvasir {

/// The closed list of expected failures that can reach a user.
enum class ErrorCode {
  kInvalidJson,
  kJsonTooDeep,
  kInvalidType,
  kInvalidValue,
  kMissingParameter,
  kUnsupportedParameter,
  kUnsupportedContent,
  kInvalidTemplateInput,
  kContextLengthExceeded,  // prompt (+ max_tokens) over the context, or KV need over the whole
                           // budget
  kInvalidApiKey,
  kModelNotFound,
  kUnknownUrl,
  kMethodNotSupported,
  kRequestTimeout,
  kLengthRequired,
  kBodyTooLarge,
  kUriTooLong,
  kUnsupportedMediaType,
  kExpectationFailed,
  kHeadersTooLarge,
  kUnsupportedTransferCoding,
  kHttpVersionNotSupported,
  kDeadlineExceeded,
  kQueueFull,
  kModelLoading,
  kDraining,
  kEngineUnavailable,
  kCancelled,
  kInvalidModelFile,  // start-up: GGUF unreadable, damaged or not supported by this build
  kInvalidConfig,     // start-up: an option out of range or of the wrong form
  kInternal,
};

/// A failure and what to tell the user about it. `param` names the field at fault
/// ("messages[2].content"), or is empty.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string param;
};

template <typename T>
using Result = tl::expected<T, Error>;

/// Shorthand for the failing side of a Result.
inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string param = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(param)});
}

}  // namespace kvasir
