#include "cli/request_limits.h"

#include <algorithm>

namespace kvasir::cli {

server::RequestLimits request_limits(const config::ServeOptions& options) {
  server::RequestLimits limits;
  limits.json_depth = options.max_json_depth;
  limits.json_values = options.max_json_values;
  limits.messages = options.max_messages;
  limits.prompts = options.max_prompts;
  limits.choices = options.max_choices;
  limits.stop_strings = options.max_stop_strings;
  limits.stop_bytes = options.max_stop_bytes;
  limits.template_steps = options.max_template_steps;
  limits.rendered_bytes = options.max_rendered_bytes;
  const std::string& names = options.chat_template_kwargs;
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    if (end > begin) limits.chat_template_kwargs.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return limits;
}

}  // namespace kvasir::cli
