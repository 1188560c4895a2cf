// The ready file is whole or absent, and the port check tells a taken port.
#include "cli/ready_file.h"

#include "cli/listen_check.h"
#include "cli/load_model.h"
#include "cli/startup_error.h"
#include "tests/support/catch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

using namespace kvasir::cli;

namespace {

std::string temporary_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "kvasir-ready-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  return name;
}

/// The message of the StartupError.
template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const StartupError& error) {
    return error.what();
  }
  FAIL("no StartupError");
  return {};
}

ListenAddress listen_on(const std::string& host, std::uint32_t port) {
  return {.host = host,
          .host_origin = "k.toml:1: host",
          .port = port,
          .port_origin = "environment: KVASIR_HTTP_PORT"};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("ReadyFile: it is there with ports and pid, alone in its folder, and gone afterwards",
          "[cli]") {
  const std::string folder = temporary_folder();
  const std::string path = folder + "/ready.json";
  {
    const ReadyFile file({path, "here"}, 8080, 50051, 42);
    std::ifstream in(path);
    std::string line;
    std::getline(in, line);
    CHECK(line == R"({"http_port":8080,"grpc_port":50051,"pid":42})");
    CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  }
  CHECK_FALSE(std::filesystem::exists(path));
  std::filesystem::remove_all(folder);
}

// The first words about a folder that is not there came after the model was loaded, and named the
// temporary file.
TEST_CASE("check_ready_file: where no file can be is refused by name, before and after", "[cli]") {
  const std::string folder = temporary_folder();
  std::ofstream(folder + "/file") << "x";
  const auto refused = [](const std::string& path, const std::string& why) {
    const NamedPath file{path, "environment: KVASIR_READY_FILE"};
    const std::string message = error_of([&] { check_ready_file(file); });
    INFO(message);
    CHECK(has(message, "environment: KVASIR_READY_FILE: \"" + path + "\" " + why));
    const std::string late = error_of([&] { const ReadyFile made(file, 1, 2, 3); });
    CHECK(has(late, "environment: KVASIR_READY_FILE: \"" + path + "\" cannot be written"));
    CHECK_FALSE(has(late, ".tmp"));
  };
  refused("/nonexistent/ready", "is in a folder that does not exist");
  refused(folder, "is a folder");
  refused(folder + "/", "is a folder");
  refused(folder + "/file/ready", "is not in a folder");
  CHECK_NOTHROW(check_ready_file({folder + "/ready", "here"}));
  CHECK_NOTHROW(check_ready_file({folder + "/file", "here"}));
  CHECK_NOTHROW(check_ready_file({"ready", "here"}));
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  std::filesystem::remove_all(folder);
}

TEST_CASE("check_listen: a taken port is told with option, host and port", "[cli]") {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(listen(fd, 1) == 0);
  socklen_t size = sizeof(address);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const std::uint32_t port = ntohs(address.sin_port);
  const std::string message = error_of([&] { check_listen(listen_on("127.0.0.1", port)); });
  CHECK(has(message, "environment: KVASIR_HTTP_PORT: "));
  CHECK(has(message, "127.0.0.1:" + std::to_string(port)));
  close(fd);
  CHECK_NOTHROW(check_listen(listen_on("127.0.0.1", 0)));
}

TEST_CASE("check_listen: a host that is no address of this machine is refused", "[cli]") {
  CHECK(has(error_of([] { check_listen(listen_on("192.0.2.1", 0)); }),
            "k.toml:1: host: cannot listen on 192"));
  CHECK(has(error_of([] { check_listen(listen_on("not a host", 0)); }), "k.toml:1: host: "));
}

TEST_CASE("resolve_model_path: what is no readable regular file is refused by name", "[cli]") {
  const std::string folder = temporary_folder();
  CHECK(has(error_of([] {
              (void)resolve_model_path({"/nonexistent.gguf", "here"});
            }),
            "does not exist"));
  CHECK(has(error_of([&] {
              (void)resolve_model_path({folder, "here"});
            }),
            "is not a regular file"));
  CHECK(has(error_of([] {
              (void)resolve_model_path({"/dev/null", "here"});
            }),
            "is not a regular file"));
  std::filesystem::remove_all(folder);
}
