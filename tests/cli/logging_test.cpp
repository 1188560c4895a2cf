// What clients send must neither break a log line nor forge one.
#include "cli/logging.h"

#include "cli/line_writer.h"
#include "tests/support/catch.h"

#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <string>
#include <unistd.h>

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

namespace {

/// A pipe whose reader reads when told.
class Pipe {
 public:
  Pipe() { REQUIRE(pipe(ends_) == 0); }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  [[nodiscard]] int to() const { return ends_[1]; }
  /// Leaves room for nothing.
  void fill() const {
    set_blocking(ends_[1], false);
    const std::string page(4096, 'x');
    while (::write(ends_[1], page.data(), page.size()) > 0) {
    }
    set_blocking(ends_[1], true);
  }
  /// All that is in it now.
  [[nodiscard]] std::string drain() const {
    set_blocking(ends_[0], false);
    std::string all;
    char buffer[4096];
    for (ssize_t count = 0; (count = ::read(ends_[0], buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<std::size_t>(count));
    }
    return all;
  }

 private:
  static void set_blocking(int fd, bool on) {
    const int flags = fcntl(fd, F_GETFL);
    REQUIRE(fcntl(fd, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0);
  }
  int ends_[2] = {-1, -1};
};

}  // namespace

// A log reader that stood still stopped the thread that served every connection. These cases hang
// when a line waits for its reader.
TEST_CASE("LineWriter: a line that nobody reads is dropped instead of waited for", "[cli]") {
  const Pipe pipe;
  LineWriter writer(pipe.to());
  CHECK(writer.write("one\n"));
  CHECK(pipe.drain() == "one\n");
  pipe.fill();
  CHECK_FALSE(writer.write("two\n"));
  (void)pipe.drain();
  CHECK(writer.write("three\n"));
  CHECK(pipe.drain() == "three\n");
}

TEST_CASE("LineWriter: a line cut by a full pipe ends before the next one starts", "[cli]") {
  const Pipe pipe;
  LineWriter writer(pipe.to());
  CHECK_FALSE(writer.write(std::string(1U << 20U, 'a') + "\n"));
  CHECK_FALSE(writer.write("b\n"));
  const std::string cut = pipe.drain();
  CHECK(cut.find_first_not_of('a') == std::string::npos);
  CHECK(writer.write("c\n"));
  CHECK(pipe.drain() == "\nc\n");
}

TEST_CASE("LineWriter: a closed descriptor takes nothing and harms nobody", "[cli]") {
  LineWriter writer(-1);
  CHECK_FALSE(writer.write("one\n"));
}

TEST_CASE("start_logging: levels are the option's words, dropped lines are counted", "[cli]") {
  const Pipe pipe;
  start_logging("warn", "json", pipe.to());
  spdlog::info("too quiet");
  spdlog::warn("first");
  const std::string first = pipe.drain();
  CHECK(first.find(R"("level":"warn",)") != std::string::npos);
  CHECK(first.find("too quiet") == std::string::npos);
  pipe.fill();
  spdlog::error("lost");
  spdlog::error("lost");
  (void)pipe.drain();
  spdlog::error("last");
  const std::string last = pipe.drain();
  CHECK(last.find("2 log lines were dropped") < last.find(R"("message":"last"})"));
  CHECK(last.find("lost") == std::string::npos);
  spdlog::error("more");
  CHECK(pipe.drain().find("dropped") == std::string::npos);
  start_logging("error", "text");
}
