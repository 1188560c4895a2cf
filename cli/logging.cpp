// spdlog's %v writes a message as it is, so both formats get a flag of their own that escapes it.
#include "cli/logging.h"

#include "cli/line_writer.h"
#include "server/utf8.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace kvasir::cli {
namespace {

constexpr char kHex[] = "0123456789abcdef";

using Escape = std::string (*)(std::string_view);

class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  explicit EscapedMessage(Escape escape) : escape_(escape) {}
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string text = escape_({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  [[nodiscard]] std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>(escape_);
  }

 private:
  Escape escape_;
};

/// The level in the words of the option log-level (spdlog has "warning" for one of them).
class LevelName final : public spdlog::custom_flag_formatter {
 public:
  explicit LevelName(std::size_t width) : width_(width) {}
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(message.level);
    std::string name(level.data(), level.size());
    if (message.level == spdlog::level::warn) name = "warn";
    if (name.size() < width_) name.resize(width_, ' ');
    out.append(name.data(), name.data() + name.size());
  }
  [[nodiscard]] std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<LevelName>(width_);
  }

 private:
  std::size_t width_;
};

class DroppingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DroppingSink(int fd) : writer_(fd) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (num_dropped_ > 0) {
      const std::string text = std::to_string(num_dropped_) + " log lines were dropped: not read";
      spdlog::details::log_msg notice = message;
      notice.level = spdlog::level::warn;
      notice.payload = text;
      if (write(notice)) num_dropped_ = 0;
    }
    if (!write(message)) ++num_dropped_;
  }
  void flush_() override {}

 private:
  bool write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    return writer_.write({line.data(), line.size()});
  }

  LineWriter writer_;
  std::uint64_t num_dropped_ = 0;
};

constexpr std::size_t kLevelWidth = 5;

}  // namespace

std::string json_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = server::utf8_character_bytes(text.substr(i));
    if (length == 0) {
      out += "\\ufffd";
    } else if (byte == '"' || byte == '\\') {
      out += {'\\', text[i]};
    } else if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'u', '0', '0', kHex[byte >> 4U], kHex[byte & 15U]};
    } else {
      out += text.substr(i, length);
    }
    i += length == 0 ? 1 : length;
  }
  return out;
}

std::string line_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += {'\\', 'x', kHex[byte >> 4U], kHex[byte & 15U]};
    } else {
      out += c;
    }
  }
  return out;
}

void start_logging(const std::string& level, const std::string& format, int fd) {
  const bool json = format == "json";
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedMessage>('*', json ? &json_escaped : &line_escaped);
  formatter->add_flag<LevelName>('K', json ? 0 : kLevelWidth);
  formatter->set_pattern(
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%K","thread":%t,"message":"%*"})"
           : "%Y-%m-%d %H:%M:%S.%e %K %*");
  auto logger = std::make_shared<spdlog::logger>("kvasir", std::make_shared<DroppingSink>(fd));
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace kvasir::cli
