#include "runtime/model/printable.h"

#include "tests/support/catch.h"

#include <string>

using kvasir::runtime::printable;

TEST_CASE("printable: text without control characters stays as it is", "[runtime]") {
  CHECK(printable("token_embd.weight") == "token_embd.weight");
  CHECK(printable("Ġthe ü 雪 \"x\"") == "Ġthe ü 雪 \"x\"");
  CHECK(printable("\xF0\x9F\x90\xBA") == "\xF0\x9F\x90\xBA");
}

TEST_CASE("printable: control characters and bytes that are no UTF-8 are escaped", "[runtime]") {
  CHECK(printable("a\nb\tc\\d\re") == "a\\nb\\tc\\\\d\\x0de");
  CHECK(printable(std::string("\0\x1b\x7f", 3)) == "\\x00\\x1b\\x7f");
  CHECK(printable("\xc2\x9b[2J") == "\\xc2\\x9b[2J");  // C1 control sequence introducer
  CHECK(printable("\xe2\x80\xae"
                  "abc") == "\\xe2\\x80\\xaeabc");        // right-to-left override
  CHECK(printable("\xe2\x80\xa8") == "\\xe2\\x80\\xa8");  // line separator
  CHECK(printable("\xff\xc0\x80") == "\\xff\\xc0\\x80");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // surrogate
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");           // cut character
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(printable("\xe0\x80\xaf") == "\\xe0\\x80\\xaf");  // overlong
}

TEST_CASE("printable: long text is cut between characters", "[runtime]") {
  CHECK(printable("abcdef", 6) == "abcdef");
  CHECK(printable("abcdef", 5) == "abcde...");
  CHECK(printable("abü", 3) == "ab...");
}
