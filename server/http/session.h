// One connection: reads requests one after the other, has them answered and writes the answers. All
// of it runs on the connection's strand but what takes long (parsing, tokenising, large answers),
// which the work threads do. A read is always outstanding while a request is in flight, so that a
// client that leaves is seen at once; what it sends ahead is kept up to a bound, and past it the
// connection ends with its request.
#pragma once

#include "core/clock.h"
#include "server/http/http_server.h"
#include "server/http/post_handler.h"
#include "server/http/request_reader.h"
#include "server/http/response.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace kvasir::server {

class HttpSession;

/// What all connections of one server share.
struct HttpShared {
  HttpShared(const HttpOptions& server_options, GenerateService& generate_service,
             std::uint32_t num_work_threads)
      : options(server_options),
        service(generate_service),
        body_bytes(server_options.max_waiting_body_bytes),
        work(num_work_threads) {}

  /// Unlike all others of this process and of other runs: 16 hexadecimal digits.
  [[nodiscard]] std::string new_id();

  const HttpOptions options;
  GenerateService& service;
  SteadyClock clock;
  std::atomic<std::uint32_t> live_requests{0};
  std::uint64_t id_base = 0;  // random at start
  std::atomic<std::uint64_t> ids_made{0};

  /// Of all bodies that are being read or wait for a work thread, whether their clients are still
  /// there or not: the bound of the work threads' queue.
  ByteBudget body_bytes;

  std::mutex sessions_mutex;
  std::set<std::shared_ptr<HttpSession>> sessions;  // open ones; each leaves when it closes
  std::atomic<std::uint32_t> num_sessions{0};

  boost::asio::thread_pool work;  // parsing and tokenising; last, so that it ends first
};

/// A timer whose handler never runs once it was armed anew or disarmed.
class Deadline {
 public:
  explicit Deadline(const boost::asio::any_io_executor& executor) : timer_(executor) {}
  void arm(std::chrono::milliseconds after, std::function<void()> expired);
  void disarm();

 private:
  boost::asio::steady_timer timer_;
  std::shared_ptr<std::uint64_t> version_ = std::make_shared<std::uint64_t>(0);
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::ip::tcp::socket socket, HttpShared& shared);
  /// On the strand: joins the shared set and begins to read. A failure of our own in it or in what
  /// follows (memory at its end) ends this connection alone, at once.
  void start();
  /// On the strand: ends the connection and what it runs.
  void close();

 private:
  enum class Phase : std::uint8_t {
    kReading,    // a request's head or body
    kWorking,    // in flight: being prepared or generated, a stream's events included
    kWriting,    // its last bytes are on their way
    kLingering,  // our side is shut; what the client still sends is dropped
    kClosed,
  };
  /// The request that is being read or answered.
  struct Current {
    bool active = false;
    std::string id;
    std::string_view route = "-";
    std::string_view method = "-";
    TimePoint began{};
    int status = 0;
    std::string_view outcome;  // "stop", "length", an error's code, "client_gone", ...
    Usage usage;
    bool closes = false;  // the connection ends with it
  };

  /// Runs what the strand was given for this session: an exception ends the session.
  template <typename Function>
  void guarded(const Function& function);
  /// A member as a handler, which is guarded and keeps the session.
  template <typename... Arguments>
  [[nodiscard]] auto handler(void (HttpSession::*member)(Arguments...));

  // reading
  void join();
  void read();
  void on_read(const boost::system::error_code& ec, std::size_t bytes);
  void keep_ahead(std::size_t bytes);
  void process();
  void begin_request();
  void expect_request();
  void on_read_timeout();
  // answering
  void dispatch();
  void dispatch_post(const RouteMatch& match);
  void on_outcome(PostOutcome outcome);
  void pump();
  void pump_stream(std::vector<ChoiceDelta> deltas);
  void pump_whole(std::vector<ChoiceDelta> deltas);
  void build_whole();
  void fail_answer(const Error& error);
  void send_event_bytes(const std::string& events);
  void arm_ping();
  void on_ping();
  // writing
  void refuse(const Error& error);
  void respond(Response response);
  void send(std::string bytes);
  void write();
  void write_some();
  void arm_write_deadline();
  void on_write_timeout();
  void on_written(const boost::system::error_code& ec, std::size_t bytes);
  // ending
  void finish_request();
  void record_request();
  void on_failure(const std::exception& failure);
  void linger();
  void abort(CancelCause cause, std::string_view outcome);
  [[nodiscard]] ResponseContext response_context() const;

  boost::asio::ip::tcp::socket socket_;
  HttpShared& shared_;
  Phase phase_ = Phase::kReading;
  std::atomic<bool> gone_{false};  // closed; what still runs elsewhere for it is in vain
  RequestReader reader_;
  Current current_;

  std::array<char, 16U << 10U> read_buffer_{};
  std::string inbox_;  // received and not yet understood
  bool reading_ = false;
  bool header_timer_runs_ = false;
  std::size_t lingered_bytes_ = 0;
  std::string outbox_;                    // waits for the write in flight
  std::string writing_;                   // the write in flight
  std::size_t written_bytes_ = 0;         // of writing_
  std::size_t deadline_armed_bytes_ = 0;  // written_bytes_ when the write deadline was armed
  bool write_in_flight_ = false;

  std::shared_ptr<Generation> generation_;
  std::optional<StreamAnswer> stream_;
  std::optional<WholeAnswer> whole_;
  bool stream_head_sent_ = false;

  Deadline read_deadline_;
  Deadline write_deadline_;
  Deadline ping_;
};

}  // namespace kvasir::server
