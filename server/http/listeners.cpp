#include "server/http/listeners.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <netinet/in.h>
#include <stdexcept>
#include <utility>

namespace kvasir::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// Pause of a listener when the process has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause{100};

/// Of a name with several addresses, those of this machine: "localhost" is both 127.0.0.1 and ::1,
/// and a machine without IPv6 has only one of them.
bool is_not_ours(const boost::system::error_code& ec) {
  return ec == asio::error::address_family_not_supported ||
         ec == boost::system::errc::address_not_available;
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

}  // namespace

Listener::Listener(asio::io_context& io)
    : io_(io), acceptor_(asio::make_strand(io)), pause_(acceptor_.get_executor()) {}

void Listener::bind_tcp(const asio::generic::stream_protocol::endpoint& endpoint, bool v6_only) {
  is_tcp_ = true;
  acceptor_.open(asio::generic::stream_protocol(endpoint.protocol().family(), IPPROTO_TCP));
  acceptor_.set_option(asio::socket_base::reuse_address(true));
  if (v6_only) acceptor_.set_option(asio::ip::v6_only(true));
  acceptor_.bind(endpoint);
  acceptor_.listen(asio::socket_base::max_listen_connections);
}

void Listener::bind_unix(const std::string& path) {
  const asio::local::stream_protocol::endpoint endpoint(path);
  acceptor_.open(asio::generic::stream_protocol(AF_UNIX, 0));
  acceptor_.bind(endpoint);
  file_.emplace(path);
  acceptor_.listen(asio::socket_base::max_listen_connections);
}

std::uint16_t Listener::port() const {
  const auto endpoint = acceptor_.local_endpoint();
  if (endpoint.data()->sa_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(endpoint.data())->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(endpoint.data())->sin_port);
}

void Listener::start(Accepted accepted) {
  accepted_ = std::move(accepted);
  accept();
}

void Listener::accept() {
  acceptor_.async_accept(asio::make_strand(io_),
                         [this](const boost::system::error_code& ec, Transport::Socket socket) {
                           on_accepted(ec, std::move(socket));
                         });
}

void Listener::on_accepted(const boost::system::error_code& ec, Transport::Socket socket) {
  if (!acceptor_.is_open() || ec == asio::error::operation_aborted) return;
  if (ec) {
    spdlog::warn("no connection can be taken: {}", ec.message());
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled && acceptor_.is_open()) accept();
    });
    return;
  }
  boost::system::error_code ignored;
  if (is_tcp_) socket.set_option(tcp::no_delay(true), ignored);
  try {
    accepted_(std::move(socket));
  } catch (const std::exception& failure) {  // memory at its end: this connection alone
    spdlog::error("a connection could not be begun: {}", failure.what());
  }
  accept();
}

void Listener::stop() {
  asio::post(acceptor_.get_executor(), [this] {
    pause_.cancel();
    close();
  });
}

void Listener::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

Listeners listen_tcp(asio::io_context& io, const std::string& what, const std::string& host,
                     std::uint16_t port) {
  try {
    const std::vector<tcp::endpoint> endpoints = resolved(io, host, port);
    Listeners listeners;
    boost::system::error_code last = asio::error::host_not_found;
    for (tcp::endpoint endpoint : endpoints) {
      if (!listeners.empty()) endpoint.port(listeners.front()->port());
      auto listener = std::make_unique<Listener>(io);
      try {
        // By itself "::" means IPv4 too; beside an IPv4 address it would take that one's port.
        listener->bind_tcp(endpoint, endpoints.size() > 1 && endpoint.address().is_v6());
        listeners.push_back(std::move(listener));
      } catch (const boost::system::system_error& failure) {
        if (!is_not_ours(failure.code())) throw;
        last = failure.code();
      }
    }
    if (listeners.empty()) throw boost::system::system_error(last);
    return listeners;
  } catch (const boost::system::system_error& failure) {
    throw std::runtime_error("cannot listen for " + what + " on " + host + ":" +
                             std::to_string(port) + ": " + failure.code().message());
  }
}

std::unique_ptr<Listener> listen_unix(asio::io_context& io, const std::string& path) {
  if (auto ok = clear_socket_path(path); !ok) throw std::runtime_error(ok.error().message);
  auto listener = std::make_unique<Listener>(io);
  try {
    listener->bind_unix(path);
  } catch (const boost::system::system_error& failure) {
    throw std::runtime_error("cannot listen for HTTP on " + path + ": " + failure.code().message());
  }
  return listener;
}

}  // namespace kvasir::server
