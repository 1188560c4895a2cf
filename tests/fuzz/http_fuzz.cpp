// HTTP bytes to fields to a verdict, without sockets: framing gives the same however the bytes come
// in, JSON that is accepted is what nlohmann's own parser reads, and what the validator accepts is
// in range. A first byte of 0 means a whole request follows, others a body for one of the routes.
#include "server/http/json_reader.h"
#include "server/http/request_json.h"
#include "server/http/request_reader.h"
#include "server/validate.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/verdict.h"

#include <optional>
#include <string>
#include <utility>

using namespace kvasir;
using namespace kvasir::server;
using fuzz::ByteSource;
using fuzz::require;

namespace {

constexpr std::uint64_t kMaxBodyBytes = 1U << 16U;

struct Framed {
  std::optional<std::string> body;
  std::string head;  // what was understood of it
  std::string refusal;
  std::string rest;  // bytes behind the request
};

/// Feeds `bytes` in pieces of the sizes that `cuts` gives; all at once where it gives none.
Framed frame(const std::string& bytes, ByteSource* cuts) {
  ByteBudget budget(1U << 20U);
  RequestReader reader({.max_header_bytes = 4096,
                        .max_uri_bytes = 512,
                        .max_fields = 20,
                        .max_body_bytes = kMaxBodyBytes},
                       budget);
  Framed framed;
  std::string inbox;
  std::size_t given = 0;
  for (;;) {
    const RequestReader::Progress progress = reader.advance(inbox);
    if (progress == RequestReader::Progress::kHeadDone) {
      const RequestHead& head = reader.head();
      framed.head = head.method + " " + head.target + " " + head.content_type + " " +
                    head.content_encoding + " " + head.request_id + (head.keep_alive ? "k" : "") +
                    (head.is_http_1_0 ? "0" : "") + (head.expects_continue ? "c" : "");
      continue;
    }
    if (progress == RequestReader::Progress::kRefused) {
      framed.refusal = reader.refusal().message;
      require(!framed.refusal.empty(), "a refusal has words");
      require(reader.refusal().code != ErrorCode::kInternal, "bytes never make a 500");
      break;
    }
    if (progress == RequestReader::Progress::kDone) {
      framed.body = reader.take_body().text;
      require(framed.body->size() <= kMaxBodyBytes, "a body is within its limit");
      framed.rest = inbox + bytes.substr(given);
      break;
    }
    if (given == bytes.size()) break;
    const std::size_t piece = cuts == nullptr ? bytes.size() : 1 + cuts->byte() % 16U;
    inbox += bytes.substr(given, piece);
    given = std::min(bytes.size(), given + piece);
  }
  return framed;
}

std::string_view without_mark(std::string_view text) {
  return text.substr(0, 3) == "\xEF\xBB\xBF" ? text.substr(3) : text;
}

void judge(std::uint8_t route, const std::string& body) {
  const auto json = read_json(body, fuzz::request_limits());
  if (!json) {
    require(json.error().code == ErrorCode::kInvalidJson ||
                json.error().code == ErrorCode::kJsonTooDeep,
            "what is no JSON is told so", json.error().message);
    return;
  }
  require(json->is_object(), "the top level is an object");
  // Both parse the same text; where the strict one accepts, the values are equal.
  const auto plain = nlohmann::json::parse(without_mark(body), nullptr, /*allow_exceptions=*/false);
  require(plain == *json, "the strict reader and nlohmann's read the same value", body);
  require(nlohmann::json::parse(json->dump()) == *json, "what was read can be written");
  fuzz::judge_json(route, *json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ByteSource source(data, size);
  const std::uint8_t route = source.byte();
  if (route != 0) {
    judge(route, source.take_all());
    return 0;
  }
  const std::string cuts = source.take(4);
  const std::string bytes = source.take_all();
  const Framed whole = frame(bytes, nullptr);
  ByteSource sizes(reinterpret_cast<const std::uint8_t*>(cuts.data()), cuts.size());
  const Framed pieces = frame(bytes, &sizes);
  require(whole.body == pieces.body && whole.head == pieces.head, "framing is the same in pieces");
  require(whole.refusal.empty() == pieces.refusal.empty(), "a refusal is the same in pieces",
          whole.refusal + pieces.refusal);
  require(whole.rest == pieces.rest, "the next request begins at the same byte");
  if (whole.body) judge(1, *whole.body);
  return 0;
}
