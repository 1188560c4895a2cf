// One connection: reads requests one after the other, has them answered and writes the answers. All
// of it runs on the connection's strand but what takes long (parsing, tokenising, large answers),
// which the work threads do. A read is always outstanding while a request is in flight, so that a
// client that leaves is seen at once; what it sends ahead is kept up to a bound, and past it the
// connection ends with its request. Reading is in session.cpp, answering in session_answer.cpp,
// writing and ending in session_write.cpp; the bytes themselves are the transport's.
#pragma once

#include "server/http/deadline.h"
#include "server/http/http_shared.h"
#include "server/http/post_handler.h"
#include "server/http/request_gate.h"
#include "server/http/request_reader.h"
#include "server/http/response.h"
#include "server/http/transport.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvasir::server {

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  /// `tls` is null for a plain connection; `slot` is given back when it closes.
  HttpSession(Transport::Socket socket, std::shared_ptr<SSL_CTX> tls, DoorKind door,
              ConnectionSlot slot, HttpShared& shared);
  /// On the strand: joins the shared set and begins to read. A failure of our own in it or in what
  /// follows (memory at its end) ends this connection alone, at once.
  void start();
  /// On the strand: ends the connection and what it runs.
  void close();
  [[nodiscard]] const boost::asio::any_io_executor& executor() const {
    return transport_.executor();
  }

 private:
  enum class Phase : std::uint8_t {
    kHandshaking,  // TLS only
    kReading,      // a request's head or body
    kWorking,      // in flight: being prepared or generated, a stream's events
                   // included
    kWriting,      // its last bytes are on their way
    kLingering,    // our side is shut; what the client still sends is dropped
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
    GateVerdict gate;
    std::string cors_fields;
  };

  /// Runs what the strand was given for this session: an exception ends the session.
  template <typename Function>
  void guarded(const Function& function) {
    try {
      function();
    } catch (const std::exception& failure) {
      on_failure(failure);
    }
  }
  /// A member as a handler, which is guarded and keeps the session.
  template <typename... Arguments>
  [[nodiscard]] auto handler(void (HttpSession::*member)(Arguments...)) {
    return [self = shared_from_this(), member](const std::decay_t<Arguments>&... arguments) {
      self->guarded([&] { ((*self).*member)(arguments...); });
    };
  }

  // reading
  void join();
  void on_handshake(const boost::system::error_code& ec);
  void read();
  void on_read(const boost::system::error_code& ec, std::string_view bytes);
  void keep_ahead(std::string_view bytes);
  void process();
  void on_body_wanted();
  void begin_request();
  void expect_request();
  void on_read_timeout();
  // answering
  void dispatch();
  void dispatch_post(const RouteMatch& match);
  void on_outcome(PostOutcome outcome);
  void pump();
  void pump_stream(std::vector<ChoiceDelta> deltas);
  void build_events(std::vector<ChoiceDelta> deltas, bool done);
  void send_events(std::string events, bool done);
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
  [[nodiscard]] ResponseContext response_context() const;
  // ending
  void finish_request();
  void record_request();
  void on_failure(const std::exception& failure);
  void linger();
  void abort(CancelCause cause, std::string_view outcome);

  Transport transport_;
  const DoorKind door_;
  ConnectionSlot slot_;
  HttpShared& shared_;
  Phase phase_ = Phase::kReading;
  std::atomic<bool> gone_{false};  // closed; what still runs elsewhere for it is in vain
  RequestReader reader_;
  Current current_;

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
  std::shared_ptr<StreamAnswer> stream_;  // a work thread may have it while building_
  std::optional<WholeAnswer> whole_;
  bool stream_head_sent_ = false;
  bool building_ = false;  // events are being put together elsewhere

  Deadline read_deadline_;
  Deadline write_deadline_;
  Deadline ping_;
};

}  // namespace kvasir::server
