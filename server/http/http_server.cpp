#include "server/http/http_server.h"

#include "server/http/session.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
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

/// One address that is listened on.
struct Listener {
  explicit Listener(asio::io_context& io)
      : acceptor(asio::make_strand(io)), pause(acceptor.get_executor()) {}
  tcp::acceptor acceptor;
  asio::steady_timer pause;
};
using Listeners = std::vector<std::unique_ptr<Listener>>;

/// Of a name with several addresses, those of this machine: "localhost" is both 127.0.0.1 and ::1,
/// and a machine without IPv6 has only one of them.
bool is_not_ours(const boost::system::error_code& ec) {
  return ec == asio::error::address_family_not_supported ||
         ec == boost::system::errc::address_not_available;
}

std::unique_ptr<Listener> listen_on(asio::io_context& io, const tcp::endpoint& endpoint,
                                    bool is_only) {
  auto listener = std::make_unique<Listener>(io);
  listener->acceptor.open(endpoint.protocol());
  listener->acceptor.set_option(tcp::acceptor::reuse_address(true));
  // By itself "::" means IPv4 too; beside an IPv4 address it would take that one's port.
  if (!is_only && endpoint.address().is_v6())
    listener->acceptor.set_option(asio::ip::v6_only(true));
  listener->acceptor.bind(endpoint);
  listener->acceptor.listen(tcp::acceptor::max_listen_connections);
  return listener;
}

std::vector<tcp::endpoint> resolved(asio::io_context& io, const std::string& host,
                                    std::uint16_t port) {
  tcp::resolver resolver(io);
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : resolver.resolve(
           host, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service)) {
    if (std::find(endpoints.begin(), endpoints.end(), entry.endpoint()) == endpoints.end())
      endpoints.push_back(entry.endpoint());
  }
  return endpoints;
}

/// On all addresses of `host`, all with one port; at least one.
Listeners listen(asio::io_context& io, const std::string& host, std::uint16_t port) {
  try {
    const std::vector<tcp::endpoint> endpoints = resolved(io, host, port);
    Listeners listeners;
    boost::system::error_code last = asio::error::host_not_found;
    for (tcp::endpoint endpoint : endpoints) {
      if (!listeners.empty()) endpoint.port(listeners.front()->acceptor.local_endpoint().port());
      try {
        listeners.push_back(listen_on(io, endpoint, endpoints.size() == 1));
      } catch (const boost::system::system_error& failure) {
        if (!is_not_ours(failure.code())) throw;
        last = failure.code();
      }
    }
    if (listeners.empty()) throw boost::system::system_error(last);
    return listeners;
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
        listeners(listen(io, options.host, options.port)),
        work_guard(asio::make_work_guard(io)) {
    std::random_device device;
    shared.id_base = (std::uint64_t{device()} << 32U) | device();
    bound_port = listeners.front()->acceptor.local_endpoint().port();
    for (const auto& listener : listeners) accept(*listener);
    for (std::uint32_t i = 0; i < options.num_threads; ++i) {
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

  void accept(Listener& listener) {
    listener.acceptor.async_accept(
        asio::make_strand(io),
        [this, &listener](const boost::system::error_code& ec, tcp::socket socket) {
          on_accepted(listener, ec, std::move(socket));
        });
  }

  void on_accepted(Listener& listener, const boost::system::error_code& ec, tcp::socket socket) {
    if (!listener.acceptor.is_open() || ec == asio::error::operation_aborted) return;
    if (ec) {
      listener.pause.expires_after(kAcceptPause);
      listener.pause.async_wait([this, &listener](const boost::system::error_code& cancelled) {
        if (!cancelled && listener.acceptor.is_open()) accept(listener);
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
    accept(listener);
  }

  void stop_accepting() {
    for (const auto& listener : listeners) {
      asio::post(listener->acceptor.get_executor(), [&target = *listener] {
        boost::system::error_code ignored;
        target.pause.cancel();
        target.acceptor.close(ignored);
      });
    }
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
    for (const auto& listener : listeners) listener->acceptor.close(ignored);
    io.restart();
    io.poll();
  }

  asio::io_context io;  // first: sessions and timers need it to their end
  HttpShared shared;
  Listeners listeners;
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
