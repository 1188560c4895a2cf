#include "server/http/http_server.h"

#include "server/http/session.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace kvasir::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// Parsing and tokenising: two, so that one long prompt does not hold all others up.
constexpr std::uint32_t kNumWorkThreads = 2;
/// Pause of the acceptor when the process has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause{100};

tcp::acceptor listen(asio::io_context& io, const std::string& host, std::uint16_t port) {
  try {
    tcp::resolver resolver(io);
    const auto found = resolver.resolve(host, std::to_string(port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    tcp::acceptor acceptor(asio::make_strand(io));
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen(tcp::acceptor::max_listen_connections);
    return acceptor;
  } catch (const boost::system::system_error& failure) {
    throw std::runtime_error("cannot listen for HTTP on " + host + ":" + std::to_string(port) +
                             ": " + failure.code().message());
  }
}

/// What a connection past the limit gets before it is closed: as much as fits without waiting.
void turn_away(tcp::socket socket, HttpShared& shared) {
  Response response = error_response({ErrorCode::kEngineUnavailable, "too many connections", {}});
  response.closes = true;
  const std::string bytes = response_bytes(response, {.request_id = "req-" + shared.new_id()});
  boost::system::error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(bytes), ignored);
  socket.shutdown(tcp::socket::shutdown_both, ignored);
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& options, GenerateService& service)
      : shared(options, service, kNumWorkThreads),
        acceptor(listen(io, options.host, options.port)),
        pause(acceptor.get_executor()),
        work_guard(asio::make_work_guard(io)) {
    std::random_device device;
    shared.id_base = (std::uint64_t{device()} << 32U) | device();
    bound_port = acceptor.local_endpoint().port();
    accept();
    for (std::uint32_t i = 0; i < options.num_threads; ++i) {
      threads.emplace_back([this] { io.run(); });
    }
  }

  void accept() {
    acceptor.async_accept(asio::make_strand(io),
                          [this](const boost::system::error_code& ec, tcp::socket socket) {
                            on_accepted(ec, std::move(socket));
                          });
  }

  void on_accepted(const boost::system::error_code& ec, tcp::socket socket) {
    if (!acceptor.is_open() || ec == asio::error::operation_aborted) return;
    if (ec) {
      pause.expires_after(kAcceptPause);
      pause.async_wait([this](const boost::system::error_code& cancelled) {
        if (!cancelled && acceptor.is_open()) accept();
      });
      return;
    }
    if (shared.num_sessions.fetch_add(1) < shared.options.max_connections) {
      const auto strand = socket.get_executor();
      asio::post(strand, [session = std::make_shared<HttpSession>(std::move(socket), shared)] {
        session->start();
      });
    } else {
      shared.num_sessions.fetch_sub(1);
      turn_away(std::move(socket), shared);
    }
    accept();
  }

  void stop_accepting() {
    asio::post(acceptor.get_executor(), [this] {
      boost::system::error_code ignored;
      pause.cancel();
      acceptor.close(ignored);
    });
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
    boost::system::error_code ignored;
    acceptor.close(ignored);
    io.restart();
    io.poll();
  }

  asio::io_context io;  // first: sessions and timers need it to their end
  HttpShared shared;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  asio::executor_work_guard<asio::io_context::executor_type> work_guard;
  std::vector<std::thread> threads;
  std::uint16_t bound_port = 0;
  bool stopped = false;
};

HttpServer::HttpServer(const HttpOptions& options, GenerateService& service)
    : impl_(std::make_unique<Impl>(options, service)) {}
HttpServer::~HttpServer() { impl_->stop(); }

std::uint16_t HttpServer::port() const { return impl_->bound_port; }
void HttpServer::stop_accepting() { impl_->stop_accepting(); }
std::uint32_t HttpServer::live_requests() const { return impl_->shared.live_requests.load(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace kvasir::server
