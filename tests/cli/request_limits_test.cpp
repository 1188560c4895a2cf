// Every bound of a request is the operator's option of that name, and the defaults agree.
#include "cli/request_limits.h"

#include "tests/support/catch.h"

using namespace kvasir;

TEST_CASE("request_limits: the options' defaults are the limits'", "[cli]") {
  const server::RequestLimits defaults;
  const server::RequestLimits limits = cli::request_limits({});
  CHECK(limits.json_depth == defaults.json_depth);
  CHECK(limits.json_values == defaults.json_values);
  CHECK(limits.messages == defaults.messages);
  CHECK(limits.prompts == defaults.prompts);
  CHECK(limits.choices == defaults.choices);
  CHECK(limits.stop_strings == defaults.stop_strings);
  CHECK(limits.stop_bytes == defaults.stop_bytes);
  CHECK(limits.template_steps == defaults.template_steps);
  CHECK(limits.rendered_bytes == defaults.rendered_bytes);
  CHECK(limits.chat_template_kwargs.empty());
}

TEST_CASE("request_limits: each option reaches its limit", "[cli]") {
  config::ServeOptions options;
  options.max_json_depth = 11;
  options.max_json_values = 12;
  options.max_messages = 13;
  options.max_prompts = 14;
  options.max_choices = 15;
  options.max_stop_strings = 16;
  options.max_stop_bytes = 17;
  options.max_template_steps = 18;
  options.max_rendered_bytes = 19;
  options.chat_template_kwargs = "a,,enable_thinking,";
  const server::RequestLimits limits = cli::request_limits(options);
  CHECK(limits.json_depth == 11);
  CHECK(limits.json_values == 12);
  CHECK(limits.messages == 13);
  CHECK(limits.prompts == 14);
  CHECK(limits.choices == 15);
  CHECK(limits.stop_strings == 16);
  CHECK(limits.stop_bytes == 17);
  CHECK(limits.template_steps == 18);
  CHECK(limits.rendered_bytes == 19);
  CHECK(limits.chat_template_kwargs == std::vector<std::string>{"a", "enable_thinking"});
}
