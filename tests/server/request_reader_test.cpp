// Bodies share one budget of bytes, and what is ignored before a request costs no more than itself.
#include "server/http/request_reader.h"

#include "tests/support/catch.h"

using namespace kvasir;
using namespace kvasir::server;

namespace {

using Progress = RequestReader::Progress;

std::string post_head(std::size_t body_bytes) {
  return "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body_bytes) +
         "\r\n\r\n";
}

Progress advance(RequestReader& reader, std::string bytes) {
  Progress progress = Progress::kNeedMore;
  do {
    progress = reader.advance(bytes);
  } while (progress == Progress::kHeadDone);
  return progress;
}

}  // namespace

TEST_CASE("RequestReader: a body is charged while it grows and until it dies", "[server]") {
  ByteBudget budget(1U << 20U);
  RequestReader reader({}, budget);
  CHECK(advance(reader, post_head(1000)) == Progress::kNeedMore);
  // What a client announces costs nothing by itself.
  CHECK(budget.used_bytes() < RequestReader::kBodyBaseBytes + 1000);
  CHECK(budget.used_bytes() >= RequestReader::kBodyBaseBytes);
  CHECK(advance(reader, std::string(1000, 'x')) == Progress::kDone);
  CHECK(budget.used_bytes() >= RequestReader::kBodyBaseBytes + 1000);
  {
    const RequestBody body = reader.take_body();
    CHECK(body.text.size() == 1000);
    reader.reset();
    CHECK(budget.used_bytes() >= RequestReader::kBodyBaseBytes + 1000);
  }
  CHECK(budget.used_bytes() == 0);
  CHECK(advance(reader, post_head(1000) + "x") == Progress::kNeedMore);
  CHECK(budget.used_bytes() > 0);
  reader.reset();
  CHECK(budget.used_bytes() == 0);
}

TEST_CASE(
    "RequestReader: a chunk's line with an open quote is refused when it is there, in pieces or "
    "not",
    "[server]") {
  const std::string head =
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string opened = "A5;a=\"b\r\n" + std::string(3000, 'x');
  for (const std::string& before : {std::string(), std::string("2\r\n{}\r\n")}) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{10'000}}) {
      ByteBudget budget(1U << 20U);
      RequestReader reader({}, budget);
      REQUIRE(advance(reader, head) == Progress::kNeedMore);
      const std::string bytes = before + opened;
      std::string inbox;
      Progress progress = Progress::kNeedMore;
      for (std::size_t given = 0; given < bytes.size() && progress == Progress::kNeedMore;
           given += piece) {
        inbox += bytes.substr(given, piece);
        progress = reader.advance(inbox);
      }
      REQUIRE(progress == Progress::kRefused);
      CHECK(reader.refusal().code == ErrorCode::kInvalidValue);
    }
  }
  // The last chunk's line is followed by trailers.
  ByteBudget budget(1U << 20U);
  RequestReader reader({}, budget);
  CHECK(advance(reader, head) == Progress::kNeedMore);
  std::string inbox = "2;q=\"a b\"\r\n{}\r\n0;z\r\nTrailer: 1\r\n";
  CHECK(reader.advance(inbox) == Progress::kNeedMore);
  inbox += "\r\n";
  CHECK(reader.advance(inbox) == Progress::kDone);
}

TEST_CASE("RequestReader: past the budget of all bodies one is refused", "[server]") {
  ByteBudget budget(3 * RequestReader::kBodyBaseBytes);
  RequestReader first({}, budget);
  RequestReader second({}, budget);
  RequestReader third({}, budget);
  CHECK(advance(first, post_head(2)) == Progress::kNeedMore);
  CHECK(advance(second, post_head(100'000)) == Progress::kNeedMore);
  CHECK(advance(second, std::string(50'000, 'x')) == Progress::kRefused);
  CHECK(second.refusal().code == ErrorCode::kQueueFull);
  second.reset();
  CHECK(advance(third, post_head(2) + "{}") == Progress::kDone);
  CHECK(advance(first, "{}") == Progress::kDone);
}

TEST_CASE("RequestReader: many empty lines before a request are ignored", "[server]") {
  ByteBudget budget(1U << 20U);
  RequestReader reader({}, budget);
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += "\r\n";
  CHECK(advance(reader, bytes + "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") == Progress::kDone);
  CHECK(reader.head().target == "/livez");
}

TEST_CASE("RequestReader: a body in chunks is the same in pieces of any size", "[server]") {
  // Found by a fuzzer: a last chunk that came in two pieces failed an assertion of Beast's, which
  // only builds with assertions have.
  const std::string head =
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& body : {std::string("0\r\n\r\n"), std::string("1\r\na\r\n0\r\n\r\n"),
                                  std::string("2;e=f\r\nab\r\n3\r\ncde\r\n0\r\nt: u\r\n\r\n")}) {
    std::string whole;
    for (std::size_t piece = body.size(); piece > 0; --piece) {
      INFO(body << " in pieces of " << piece);
      ByteBudget budget(1U << 20U);
      RequestReader reader({}, budget);
      std::string inbox = head;
      REQUIRE(reader.advance(inbox) == Progress::kHeadDone);
      Progress progress = Progress::kNeedMore;
      for (std::size_t at = 0; at < body.size(); at += piece) {
        REQUIRE(progress == Progress::kNeedMore);
        inbox += body.substr(at, piece);
        progress = reader.advance(inbox);
      }
      REQUIRE(progress == Progress::kDone);
      CHECK(inbox.empty());
      const std::string text = reader.take_body().text;
      if (piece == body.size()) whole = text;
      CHECK(text == whole);
    }
  }
}
