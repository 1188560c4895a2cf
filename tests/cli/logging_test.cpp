// What clients send must neither break a log line nor forge one.
#include "cli/logging.h"

#include "tests/support/catch.h"

using namespace kvasir::cli;

TEST_CASE("json_escaped: the result is the inside of a JSON string", "[cli]") {
  CHECK(json_escaped("plain \xc3\xa9") == "plain \xc3\xa9");
  CHECK(json_escaped("a\"b\\c") == R"(a\"b\\c)");
  CHECK(json_escaped(std::string_view("\r\n\x1b[2J\0", 7)) == R"(\u000d\u000a\u001b[2J\u0000)");
  CHECK(json_escaped("\xff\xc3") == R"(\ufffd\ufffd)");
  CHECK(json_escaped("\xed\xa0\x80") == R"(\ufffd\ufffd\ufffd)");  // a surrogate is no character
}

TEST_CASE("line_escaped: a text stays one line", "[cli]") {
  CHECK(line_escaped("a\nb\x1b") == R"(a\x0ab\x1b)");
  CHECK(line_escaped("\xc3\xa9") == "\xc3\xa9");
}
