#include "server/http/http_server.h"

#include "server/http/http_shared.h"
#include "server/http/listeners.h"
#include "server/http/session.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace kvasir::server {
namespace {

namespace asio = boost::asio;

/// What a connection past the limit gets before it is closed: as much as fits without waiting. Over
/// TLS that is nothing. What came of its request is taken away, since unread bytes would turn the
/// close into a reset, and that would take the answer with it.
void turn_away(Transport::Socket socket, bool is_tls, HttpShared& shared) {
  if (is_tls) return;
  Response response = error_response({ErrorCode::kEngineUnavailable, "too many connections", {}});
  response.closes = true;
  const std::string bytes = response_bytes(response, {.request_id = "req-" + shared.new_id()});
  std::array<char, 4096> request{};
  boost::system::error_code ignored;
  socket.non_blocking(true, ignored);
  socket.read_some(asio::buffer(request), ignored);
  socket.write_some(asio::buffer(bytes), ignored);
  socket.shutdown(asio::socket_base::shutdown_both, ignored);
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& options, GenerateService& service)
      : shared(options, service),
        listeners(listen_tcp(io, "HTTP", options.host, options.port)),
        work_guard(asio::make_work_guard(io)) {
    if (options.tls != nullptr && shared.tls.current() == nullptr)
      throw std::runtime_error("OpenSSL does not take the TLS certificate and key");
    if (options.metrics_port) {
      const std::string& host = options.metrics_host.empty() ? options.host : options.metrics_host;
      metrics_listeners = listen_tcp(io, "metrics", host, *options.metrics_port);
      metrics_port = metrics_listeners.front()->port();
    }
    if (!options.socket_path.empty()) unix_listener = listen_unix(io, options.socket_path);
    port = listeners.front()->port();
    start();
  }

  void start() {
    for (const auto& listener : listeners) {
      listener->start([this](Transport::Socket socket) {
        begin(std::move(socket), DoorKind::kRest, shared.tls.enabled());
      });
    }
    if (unix_listener) {
      unix_listener->start(
          [this](Transport::Socket socket) { begin(std::move(socket), DoorKind::kRest, false); });
    }
    for (const auto& listener : metrics_listeners) {
      listener->start([this](Transport::Socket socket) {
        begin(std::move(socket), DoorKind::kMetrics, false);
      });
    }
    for (std::uint32_t i = 0; i < shared.options.num_threads; ++i) {
      threads.emplace_back([this] { run(); });
    }
  }

  /// Sessions end at their own failures; one in accepting must not take the connections with it.
  void run() {
    while (true) {
      try {
        io.run();
        return;
      } catch (const std::exception& failure) {
        spdlog::error("a handler of the HTTP door failed: {}", failure.what());
      }
    }
  }

  void begin(Transport::Socket socket, DoorKind door, bool is_tls) {
    ConnectionCount& count = shared.connections(door);
    if (!count.enter()) return turn_away(std::move(socket), is_tls, shared);
    ConnectionSlot slot(count);
    auto session = std::make_shared<HttpSession>(
        std::move(socket), is_tls ? shared.tls.current() : nullptr, door, std::move(slot), shared);
    const asio::any_io_executor strand = session->executor();
    asio::post(strand, [session = std::move(session)] { session->start(); });
  }

  template <typename Function>
  void each_listener(const Function& function) {
    for (const auto& listener : listeners) function(*listener);
    for (const auto& listener : metrics_listeners) function(*listener);
    if (unix_listener) function(*unix_listener);
  }

  void stop() {
    if (std::exchange(stopped, true)) return;
    shared.work.stop();
    shared.work.join();
    io.stop();
    for (std::thread& thread : threads) thread.join();
    // This is the only thread now. Closing ends all waits; their handlers run here and let the
    // sessions go, and with them whatever could still be woken from the engine.
    std::set<std::shared_ptr<HttpSession>> open;
    {
      const std::lock_guard lock(shared.sessions_mutex);
      open = shared.sessions;
    }
    for (const auto& session : open) session->close();
    open.clear();
    each_listener([](Listener& listener) { listener.close(); });
    io.restart();
    io.poll();
    unix_listener.reset();  // its file goes
  }

  asio::io_context io;  // first: sessions and timers need it to their end
  HttpShared shared;
  Listeners listeners;
  Listeners metrics_listeners;
  std::unique_ptr<Listener> unix_listener;
  asio::executor_work_guard<asio::io_context::executor_type> work_guard;
  std::vector<std::thread> threads;
  std::uint16_t port = 0;
  std::uint16_t metrics_port = 0;
  bool stopped = false;
};

HttpServer::HttpServer(const HttpOptions& options, GenerateService& service)
    : impl_(std::make_unique<Impl>(options, service)) {}
HttpServer::~HttpServer() { impl_->stop(); }

std::uint16_t HttpServer::port() const { return impl_->port; }
std::uint16_t HttpServer::metrics_port() const { return impl_->metrics_port; }
void HttpServer::stop_accepting() {
  impl_->each_listener([](Listener& listener) { listener.stop(); });
}
std::uint32_t HttpServer::live_requests() const { return impl_->shared.live_requests.load(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace kvasir::server
