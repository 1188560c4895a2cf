// The table against itself and against docs/CONFIG.md.
#include "config/option_table.h"

#include "config/load.h"
#include "tests/support/catch.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

using namespace kvasir::config;

TEST_CASE("option_table: names are unique and written as flags are", "[config]") {
  std::set<std::string> names;
  for (const OptionRow& row : option_table()) {
    const std::string name(row.name);
    CHECK(names.insert(name).second);
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == std::string::npos);
    CHECK_FALSE(row.help.empty());
  }
  CHECK(names.count("config") == 0);  // its flag and variable are taken
}

TEST_CASE("option_table: no two rows fill the same member", "[config]") {
  const auto table = option_table();
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (std::size_t j = i + 1; j < table.size(); ++j) {
      INFO(table[i].name << " and " << table[j].name);
      CHECK_FALSE(table[i].member == table[j].member);
    }
  }
}

TEST_CASE("option_table: every default is a value that its own row allows", "[config]") {
  const ServeOptions defaults;
  for (const OptionRow& row : option_table()) {
    const std::string value = value_text(row, defaults);
    if (value.empty()) continue;  // unset
    INFO(row.name << " = " << value);
    ConfigSources sources;
    sources.flags = {{std::string(row.name), value}};
    const ServeOptions loaded = load_options(sources).options;
    CHECK(value_text(row, loaded) == value);
  }
}

TEST_CASE("option_table: every bounded number refuses one past its bounds", "[config]") {
  for (const OptionRow& row : option_table()) {
    if (row.kind != OptionKind::kNumber && row.kind != OptionKind::kBytes) continue;
    ConfigSources sources;
    sources.flags = {{std::string(row.name), std::to_string(row.max + 1)}};
    INFO(row.name);
    CHECK_THROWS_AS(load_options(sources), ConfigError);
    if (row.min == 0) continue;
    sources.flags = {{std::string(row.name), std::to_string(row.min - 1)}};
    CHECK_THROWS_AS(load_options(sources), ConfigError);
  }
}

TEST_CASE("option_table: a name is the same word as flag, variable and key", "[config]") {
  for (const OptionRow& row : option_table()) {
    if (row.name != "kv-budget") continue;
    CHECK(flag_name(row) == "--kv-budget");
    CHECK(environment_name(row) == "KVASIR_KV_BUDGET");
    CHECK(file_key(row) == "kv_budget");
    return;
  }
  FAIL("no kv-budget");
}

TEST_CASE("config_document: docs/CONFIG.md is what the table says", "[config]") {
  const std::string path = KVASIR_SOURCE_DIR "/docs/CONFIG.md";
  if (std::getenv("KVASIR_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << config_document();
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  INFO("rewrite it with KVASIR_UPDATE_GOLDEN=1");
  CHECK(text == config_document());
}
