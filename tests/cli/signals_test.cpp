// Each case is a child process: signals belong to a whole process. Pipes say where a child is, so
// that no time is waited for.
#include "cli/signals.h"

#include "cli/logging.h"
#include "tests/support/catch.h"

#include <csignal>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

using namespace kvasir::cli;

namespace {

/// Ends a child that a broken SignalWatch would leave hanging, so that its case fails instead.
constexpr unsigned kWatchdogSeconds = 60;

/// A forked process that tells its progress byte by byte.
class Child {
 public:
  explicit Child(const std::function<void(const std::function<void()>& tell)>& body) {
    int ends[2] = {-1, -1};
    REQUIRE(pipe(ends) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      close(ends[0]);
      alarm(kWatchdogSeconds);
      start_logging("error", "text", -1);  // what the signals say is not this test's output
      body([&] { (void)!write(ends[1], "x", 1); });
      _exit(77);
    }
    close(ends[1]);
    from_ = ends[0];
  }
  ~Child() { close(from_); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void wait_for_word() const {
    char byte = 0;
    REQUIRE(read(from_, &byte, 1) == 1);
  }
  void send(int signal) const { REQUIRE(kill(pid_, signal) == 0); }
  [[nodiscard]] int exit_code() const {
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
};

/// What the main thread does while it waits for doors or the engine: nothing that signals reach.
[[noreturn]] void hang() {
  for (;;) pause();
}

}  // namespace

TEST_CASE("SignalWatch: a signal while loading ends the process without waiting", "[cli]") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Child child([](const auto& tell) {
      const SignalWatch watch;
      tell();
      hang();
    });
    child.wait_for_word();
    child.send(signal);
    CHECK(child.exit_code() == 0);
  }
}

TEST_CASE("SignalWatch: the first signal after loading is handed over", "[cli]") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Child child([](const auto& tell) {
      SignalWatch watch;
      watch.loaded();
      tell();
      _exit(watch.wait());
    });
    child.wait_for_word();
    child.send(signal);
    CHECK(child.exit_code() == signal);
  }
}

TEST_CASE("SignalWatch: hang-ups are handed over one by one until the daemon is to end", "[cli]") {
  const Child child([](const auto& tell) {
    SignalWatch watch;
    watch.loaded();
    tell();
    for (int i = 0; i < 3; ++i) {
      if (watch.wait() != SIGHUP) _exit(1);
      tell();
    }
    if (watch.wait() != SIGTERM) _exit(2);
    tell();
    _exit(watch.wait() == SIGTERM ? 0 : 3);
  });
  child.wait_for_word();
  for (int i = 0; i < 3; ++i) {
    child.send(SIGHUP);
    child.wait_for_word();
  }
  child.send(SIGTERM);
  child.wait_for_word();
  CHECK(child.exit_code() == 0);
}

TEST_CASE("SignalWatch: a hang-up while loading ends nothing", "[cli]") {
  const Child child([](const auto& tell) {
    SignalWatch watch;
    kill(getpid(), SIGHUP);
    sigset_t pending{};
    do {  // until it was taken
      sigpending(&pending);
    } while (sigismember(&pending, SIGHUP) == 1);
    watch.loaded();
    tell();
    int signal = watch.wait();
    while (signal == SIGHUP) signal = watch.wait();  // it was taken a moment after loaded()
    _exit(signal);
  });
  child.wait_for_word();
  child.send(SIGTERM);
  CHECK(child.exit_code() == SIGTERM);
}

// A second signal was only looked for while live requests were waited for: a main thread that hung
// in stopping the doors or in joining the engine could not be ended.
TEST_CASE("SignalWatch: the second signal ends the process wherever its main thread is", "[cli]") {
  const Child child([](const auto& tell) {
    SignalWatch watch;
    watch.loaded();
    tell();
    (void)watch.wait();
    tell();
    hang();
  });
  child.wait_for_word();
  child.send(SIGTERM);
  child.wait_for_word();
  child.send(SIGHUP);  // not counted
  child.send(SIGINT);
  CHECK(child.exit_code() == 128 + SIGINT);
}

TEST_CASE("SignalWatch: a hang-up that was ignored at start stays ignored", "[cli]") {
  const Child child([](const auto& tell) {
    std::signal(SIGHUP, SIG_IGN);
    SignalWatch watch;
    watch.loaded();
    tell();
    _exit(watch.wait());
  });
  child.wait_for_word();
  child.send(SIGHUP);
  child.send(SIGTERM);
  CHECK(child.exit_code() == SIGTERM);
}

TEST_CASE("SignalWatch: without a signal it ends, and signals do their own again", "[cli]") {
  const Child child([](const auto& tell) {
    std::signal(SIGTERM, SIG_DFL);  // Catch2 has a handler of its own
    { const SignalWatch watch; }
    tell();
    hang();
  });
  child.wait_for_word();
  child.send(SIGTERM);
  CHECK(child.exit_code() == -SIGTERM);
}
