// The same door over TLS and a Unix socket: what it says, who is let in, and that clients which
// leave, stall or speak something else are dealt with as over plain TCP.
#include "server/tls_identity.h"
#include "server/unix_socket.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

#include <filesystem>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

using Folder = kvasir::testing::TemporaryFolder;
using namespace std::chrono_literals;

const std::string kStream = R"({"prompt":"hello","max_tokens":200,"stream":true})";
const std::string kWhole = R"({"prompt":"hello","max_tokens":200})";

/// A server with a certificate, and a Unix socket beside it.
struct SecureServer {
  Folder folder;
  TlsIdentity identity;
  std::unique_ptr<TestServer> server;

  explicit SecureServer(HttpOptions options = {}, std::uint32_t max_waiting = 64)
      : identity(folder.path_of("cert.pem"), folder.path_of("key.pem")) {
    renew(1);
    options.tls = &identity;
    options.socket_path = socket_path();
    server = std::make_unique<TestServer>(options, 64, max_waiting);
  }
  void renew(long serial) {
    const TestPair pair = make_test_pair(serial);
    folder.write("cert.pem", pair.certificate);
    ::chmod(folder.write("key.pem", pair.key).c_str(), 0600);
    REQUIRE(identity.reload());
  }
  [[nodiscard]] std::string socket_path() const { return folder.path_of("socket"); }
  [[nodiscard]] std::uint16_t port() const { return server->door->port(); }
  [[nodiscard]] std::unique_ptr<Wire> tls() const { return tls_wire(port()); }
  [[nodiscard]] std::unique_ptr<Wire> unix_socket() const { return unix_wire(socket_path()); }
};

std::uint64_t cancelled(const TestServer& server, CancelCause cause) {
  return server.engine->status().cancelled_total.at(static_cast<std::size_t>(cause));
}

/// A socket bound to a path; it listens if told to.
class BoundSocket {
 public:
  BoundSocket(const std::string& path, bool listens) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    if (listens) REQUIRE(::listen(fd_, 1) == 0);
  }
  ~BoundSocket() { ::close(fd_); }
  BoundSocket(const BoundSocket&) = delete;
  BoundSocket& operator=(const BoundSocket&) = delete;

 private:
  int fd_;
};

}  // namespace

TEST_CASE("HttpServer: an answer is the same over TCP, TLS and a Unix socket", "[server]") {
  SecureServer secure;
  TestServer plain;
  const auto texts = [](std::unique_ptr<Wire> wire) {
    Client client(std::move(wire));
    std::vector<std::string> found;
    found.push_back(client.get("/v1/models/tiny%2Fmodel").body);
    found.push_back(client.post("/v1/completions", kWhole).json()["choices"].dump());
    std::string streamed;
    for (const std::string& event : events_of(client.post("/v1/completions", kStream).body))
      streamed +=
          event == "[DONE]" ? event : json::parse(event)["choices"][0]["text"].get<std::string>();
    found.push_back(streamed);
    found.push_back(client.get("/nothing").body);
    return found;
  };
  const std::vector<std::string> expected = texts(tcp_wire(plain.door->port()));
  CHECK(expected[2].size() == 200 + std::string("[DONE]").size());
  CHECK(texts(secure.tls()) == expected);
  CHECK(texts(secure.unix_socket()) == expected);
}

TEST_CASE("HttpServer: large bodies and answers pass through TLS whole", "[server]") {
  SecureServer secure;
  Client client(secure.tls());
  const std::string text(3U << 20U, 'y');
  const ClientResponse tokens =
      client.post("/tokenize", R"({"prompt":"x","unknown":")" + text + "\"}");
  CHECK(tokens.json()["count"] == 1);
  const json many = client
                        .post("/v1/completions",
                              R"({"prompt":"x","max_tokens":200,"logprobs":20,"seed":7,"n":16})")
                        .json();
  REQUIRE(many["choices"].size() == 16);
  for (const json& choice : many["choices"]) CHECK(choice["text"].get<std::string>().size() == 200);
}

TEST_CASE("HttpServer: TLS is 1.2 or later and speaks HTTP/1.1 alone", "[server]") {
  SecureServer secure;
  {
    const auto wire = secure.tls();
    CHECK(tls_facts(*wire).version == "TLSv1.3");
    CHECK(tls_facts(*wire).protocol.empty());
  }
  CHECK(tls_facts(*tls_wire(secure.port(), {.protocols = {}, .max_version = TLS1_2_VERSION}))
            .version == "TLSv1.2");
  CHECK_THROWS(tls_wire(secure.port(), {.protocols = {}, .max_version = TLS1_1_VERSION}));
  CHECK(tls_facts(*tls_wire(secure.port(), {.protocols = "\x02h2\x08http/1.1", .max_version = 0}))
            .protocol == "http/1.1");
  CHECK_THROWS(tls_wire(secure.port(), {.protocols = "\x02h2", .max_version = 0}));
  Client after(secure.tls());
  CHECK(after.get("/livez").status == 200);
}

TEST_CASE("HttpServer: a reloaded certificate is shown to new connections, old ones go on",
          "[server]") {
  SecureServer secure;
  auto first = secure.tls();
  CHECK(tls_facts(*first).serial == 1);
  Client old(std::move(first));
  CHECK(old.get("/livez").status == 200);
  secure.renew(2);
  CHECK(tls_facts(*secure.tls()).serial == 2);
  CHECK(old.get("/livez").status == 200);
  // A pair that cannot be read changes nothing.
  secure.folder.write("cert.pem", "nonsense");
  CHECK(!secure.identity.reload());
  CHECK(tls_facts(*secure.tls()).serial == 2);
}

TEST_CASE("HttpServer: plain bytes on the TLS port and TLS on the plain one are closed",
          "[server]") {
  SecureServer secure;
  Client plain(tcp_wire(secure.port()));
  plain.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK_THROWS(plain.read_response());  // a TLS alert at most, and the end
  CHECK(secure.server->door->live_requests() == 0);
  TestServer without;
  CHECK_THROWS(tls_wire(without.door->port()));
  CHECK(Client(without).get("/livez").status == 200);
  CHECK(Client(secure.tls()).get("/livez").status == 200);
}

TEST_CASE("HttpServer: a handshake gets the header's time", "[server]") {
  HttpOptions options;
  options.header_timeout = 50ms;
  options.idle_timeout = 1h;
  SecureServer secure(options);
  Client silent(tcp_wire(secure.port()));
  CHECK(silent.at_end());
  Client half(tcp_wire(secure.port()));
  half.send(std::string_view("\x16\x03\x01\x00", 4));
  CHECK(half.at_end());
  Client no_request(secure.tls());
  CHECK(no_request.at_end());
}

TEST_CASE("HttpServer: a client that leaves ends its sequence, over TLS and Unix sockets too",
          "[server]") {
  for (const std::string& body : {kWhole, kStream}) {
    for (const bool over_tls : {true, false}) {
      for (const int how : {0, 1, 2}) {
        INFO(body << " " << over_tls << " " << how);
        SecureServer secure;
        TestServer& server = *secure.server;
        server.executor.close_gate();
        Client client(over_tls ? secure.tls() : secure.unix_socket());
        client.send(post_bytes("/v1/completions", body));
        REQUIRE(eventually([&] { return server.executor.is_held(); }));
        if (how == 0) client.close();
        if (how == 1) client.reset();
        if (how == 2) client.shut_write();
        REQUIRE(eventually([&] { return server.door->live_requests() == 0; }));
        CHECK(eventually([&] {
          if (server.executor.is_held()) server.executor.allow_steps(1);
          return cancelled(server, CancelCause::kClientGone) == 1;
        }));
        CHECK(eventually([&] { return server.is_idle(); }));
        CHECK(server.engine->status().generation_tokens_total < 200);
      }
    }
  }
}

TEST_CASE("HttpServer: a reader that never reads is ended, over TLS and Unix sockets too",
          "[server]") {
  for (const bool over_tls : {true, false}) {
    HttpOptions options;
    options.write_timeout = 50ms;
    SecureServer secure(options, 512);
    TestServer& server = *secure.server;
    server.executor.close_gate();
    server.executor.allow_steps(1000);
    Client client(over_tls ? secure.tls() : secure.unix_socket());
    client.send(post_bytes(
        "/v1/completions",
        R"({"prompt":["a","b","c","d","e","f","g","h"],"n":16,"max_tokens":200,"logprobs":20,"stream":true})"));
    CHECK(eventually([&] { return server.door->live_requests() == 1; }));
    CHECK(eventually([&] { return server.door->live_requests() == 0; }));
    server.executor.open_gate();
    CHECK(eventually([&] { return cancelled(server, CancelCause::kSlowClient) > 0; }));
    CHECK(eventually([&] { return server.is_idle(); }));
    CHECK(cancelled(server, CancelCause::kClientGone) == 0);
  }
}

TEST_CASE("HttpServer: the socket's file is its owner's and its group's, and goes with the door",
          "[server]") {
  Folder folder;
  const std::string path = folder.path_of("socket");
  {
    TestServer server({.socket_path = path});
    struct stat found {};
    REQUIRE(::stat(path.c_str(), &found) == 0);
    CHECK(S_ISSOCK(found.st_mode));
    CHECK((found.st_mode & 0777U) == 0660U);
    CHECK(Client(unix_wire(path)).get("/livez").status == 200);
    CHECK(Client(server).get("/livez").status == 200);  // beside the port
  }
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("HttpServer: a socket that nobody listens on is replaced, anything else is not",
          "[server]") {
  Folder folder;
  const std::string path = folder.path_of("socket");
  { const BoundSocket stale(path, true); }
  REQUIRE(std::filesystem::exists(path));
  {
    TestServer server({.socket_path = path});
    CHECK(Client(unix_wire(path)).get("/livez").status == 200);
    // A second daemon does not take it away.
    CHECK_THROWS(TestServer({.socket_path = path}));
    CHECK(Client(unix_wire(path)).get("/livez").status == 200);
  }
  const std::string file = folder.write("file", "precious");
  CHECK_THROWS(TestServer({.socket_path = file}));
  CHECK(std::filesystem::file_size(file) == 8);
  std::filesystem::create_symlink(file, folder.path_of("link"));
  CHECK_THROWS(TestServer({.socket_path = folder.path_of("link")}));
  CHECK_THROWS(TestServer({.socket_path = folder.path_of("missing/socket")}));
  CHECK_THROWS(TestServer({.socket_path = folder.path_of(std::string(200, 's'))}));
}

TEST_CASE("SocketFile: another one's file at its path stays", "[server]") {
  Folder folder;
  const std::string path = folder.path_of("socket");
  {
    const BoundSocket mine(path, false);
    const SocketFile file(path);
    ::unlink(path.c_str());
    folder.write("socket", "another");
  }
  CHECK(std::filesystem::exists(path));
}
