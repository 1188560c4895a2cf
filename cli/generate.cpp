// `kvasir generate`: one prompt through the same service, engine and executor that serve uses,
// without sockets. Text goes to stdout as it comes, everything else to stderr.
#include "cli/commands.h"
#include "cli/engine_stack.h"
#include "cli/logging.h"
#include "cli/standard_streams.h"
#include "cli/startup_error.h"
#include "config/cli_flags.h"
#include "config/option_table.h"
#include "engine/engine_thread.h"
#include "server/generate_service.h"
#include "server/utf8.h"

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace kvasir::cli {
namespace {

struct GenerateFlags {
  std::string prompt;
  bool has_prompt = false;
  bool chat = false;
  std::optional<std::string> system;
  server::GenerateFields fields;
  bool quiet = false;
};

/// The wake function of a generation: the engine thread raises it, the printing thread waits for
/// it.
class WakeSignal {
 public:
  void raise() {
    const std::lock_guard lock(mutex_);
    raised_ = true;
    changed_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return raised_; });
    raised_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
};

struct Timings {
  TimePoint submitted{};
  std::optional<TimePoint> first_text;
  TimePoint finished{};
};

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

Result<std::shared_ptr<server::Generation>> submit(const GenerateFlags& flags, std::string prompt,
                                                   server::GenerateService& service,
                                                   server::WakeFunction wake) {
  if (!flags.chat) {
    server::CompletionFields fields;
    static_cast<server::GenerateFields&>(fields) = flags.fields;
    fields.prompts.emplace_back(std::move(prompt));
    return service.complete(fields, std::move(wake));
  }
  server::ChatFields fields;
  static_cast<server::GenerateFields&>(fields) = flags.fields;
  const auto message = [](const char* role, std::string content) {
    text::ChatMessage made;
    made.role = role;
    made.content = std::move(content);
    return made;
  };
  if (flags.system) fields.messages.push_back(message("system", *flags.system));
  fields.messages.push_back(message("user", std::move(prompt)));
  return service.chat(fields, std::move(wake));
}

/// Prints until the answer ends. The exit code.
int print_answer(server::Generation& generation, WakeSignal& wake, const Clock& clock,
                 Timings& timings, std::string& finish) {
  while (!generation.done()) {
    for (const server::ChoiceDelta& delta : generation.poll()) {
      if (!delta.text.empty() && !timings.first_text) timings.first_text = clock.now();
      std::cout << delta.text;
      finish_output();  // a reader that is gone, or a full disk, ends the work
      if (delta.error) {
        std::cout << '\n';
        std::fprintf(stderr, "kvasir: %s\n", line_escaped(delta.error->message).c_str());
        return 1;
      }
      if (delta.finish) finish = *delta.finish == FinishReason::kLength ? "length" : "stop";
    }
    if (!generation.done()) wake.wait();
  }
  std::cout << '\n';
  return 0;
}

void print_timings(const server::Usage& usage, const Timings& timings, const std::string& finish) {
  const TimePoint first = timings.first_text.value_or(timings.finished);
  const double decode = seconds(timings.finished - first);
  const double rate = usage.completion_tokens > 1 && decode > 0
                          ? static_cast<double>(usage.completion_tokens - 1) / decode
                          : 0;
  std::fprintf(stderr,
               "prompt %llu tokens, first text after %.3f s; %llu tokens in %.3f s (%.1f "
               "tokens/s); finish %s\n",
               static_cast<unsigned long long>(usage.prompt_tokens),
               seconds(first - timings.submitted),
               static_cast<unsigned long long>(usage.completion_tokens),
               seconds(timings.finished - timings.submitted), rate, finish.c_str());
}

int run(const GenerateFlags& flags, config::LoadedOptions loaded) {
  std::string prompt = flags.prompt;
  if (!flags.has_prompt) {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  if (!server::is_utf8(prompt) || (flags.system && !server::is_utf8(*flags.system))) {
    throw StartupError("generate: the prompt is not UTF-8");
  }
  config::ServeOptions& options = loaded.options;
  options.max_sequences = 1;
  options.max_waiting = 1;
  start_logging(flags.quiet ? "error" : options.log_level, "text");
  const auto stack = build_engine_stack(loaded);
  log_engine_stack(*stack, options);
  server::GenerateService service(stack->info, *stack->engine, *stack->model->text.tokenizer,
                                  stack->model->chat_template.get(), stack->clock);
  service.set_readiness(server::Readiness::kReady);
  WakeSignal wake;
  int exit_code = 0;
  {
    const engine::EngineThread engine_thread(*stack->engine);
    Timings timings;
    timings.submitted = stack->clock.now();
    auto generation = submit(flags, std::move(prompt), service, [&wake] { wake.raise(); });
    if (!generation) {
      const Error& error = generation.error();
      throw StartupError("generate: " + (error.param.empty() ? "" : error.param + ": ") +
                         error.message);
    }
    std::string finish = "error";
    exit_code = print_answer(**generation, wake, stack->clock, timings, finish);
    timings.finished = stack->clock.now();
    if (!flags.quiet && exit_code == 0) print_timings((*generation)->usage(), timings, finish);
  }
  return exit_code;
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand(
      "generate", "Continue a prompt (argument or standard input) on stdout, without a server");
  CLI::Option* prompt = command->add_option("prompt", flags->prompt, "The prompt");
  command->add_flag("--chat", flags->chat, "The prompt is a user's message: use the chat template");
  command->add_option("--system", flags->system, "System message, with --chat");
  // Ranges are the validator's, the same as for requests.
  command->add_option("--max-tokens", flags->fields.max_tokens, "Most tokens to generate");
  command->add_option("--temperature", flags->fields.temperature, "0 is greedy [1]");
  command->add_option("--top-p", flags->fields.top_p, "Nucleus [1: off]");
  command->add_option("--top-k", flags->fields.top_k, "Best candidates to keep [0: off]");
  command->add_option("--min-p", flags->fields.min_p,
                      "Least share of the best one's probability [0: off]");
  command->add_option("--repetition-penalty", flags->fields.repetition_penalty, "[1: off]");
  command->add_option("--presence-penalty", flags->fields.presence_penalty, "[0: off]");
  command->add_option("--frequency-penalty", flags->fields.frequency_penalty, "[0: off]");
  command->add_option("--seed", flags->fields.seed, "Equal seeds give equal text");
  command->add_option("--stop", flags->fields.stop,
                      "Text that ends the answer; may be given again");
  command->add_flag("--ignore-eos", flags->fields.ignore_eos, "Go on after the end of generation");
  command->add_flag("--quiet", flags->quiet, "Nothing on stderr but errors");
  const auto sources = config::add_option_flags(*command, config::kGenerate);
  return [flags, prompt, sources] {
    flags->has_prompt = prompt->count() > 0;
    return run(*flags, config::load_options(*sources));
  };
}

}  // namespace kvasir::cli
