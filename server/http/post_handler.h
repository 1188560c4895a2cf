// What the POST routes do with a body, off the network threads: parse, tokenise, submit. The
// session sends what comes of it.
#pragma once

#include "server/generate_service.h"
#include "server/http/openai_answer.h"
#include "server/http/request_reader.h"
#include "server/http/response.h"
#include "server/http/routes.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

namespace kvasir::server {

/// A submitted request that is answered as its tokens come.
struct StartedAnswer {
  std::shared_ptr<Generation> generation;
  AnswerShape shape;
  bool stream = false;
};
using PostOutcome = std::variant<Response, StartedAnswer>;

struct PostRequest {
  RouteId route{};
  RequestBody body;
  std::string answer_id;  // random part of the answer's id
  TimePoint arrival{};
  std::uint64_t tenant = 0;                 // of its API key
  const std::atomic<bool>* gone = nullptr;  // true once the client has left; then all is in vain
};

/// Never throws; what is wrong with the body comes back as an error response.
[[nodiscard]] PostOutcome handle_post(const PostRequest& request, GenerateService& service,
                                      WakeFunction wake);

}  // namespace kvasir::server
