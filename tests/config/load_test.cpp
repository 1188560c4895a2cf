// Options by source and precedence, and what is said about bad ones.
#include "config/load.h"

#include "config/option_table.h"
#include "tests/support/catch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

using namespace kvasir::config;

namespace {

/// A folder of this test's own, gone at its end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvasir-config-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = (path_ / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

LoadedOptions load_file(std::string_view text) {
  const TemporaryFolder folder;
  ConfigSources sources;
  sources.config_path = folder.write("kvasir.toml", text);
  return load_options(sources);
}

LoadedOptions load_flags(NamedValues flags) {
  ConfigSources sources;
  sources.flags = std::move(flags);
  return load_options(sources);
}

LoadedOptions load_environment(NamedValues environment) {
  ConfigSources sources;
  sources.environment = std::move(environment);
  return load_options(sources);
}

/// The message of the ConfigError; it must be one line.
template <typename Load>
std::string error_of(const Load& load) {
  try {
    load();
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  FAIL("no ConfigError");
  return {};
}

bool has(const std::string& text, std::string_view part) {
  INFO(text << " should have " << part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

void check_flag_refused(const std::string& name, const std::string& value, std::string_view what) {
  const std::string message = error_of([&] { (void)load_flags({{name, value}}); });
  has(message, "command line: --" + name + ": ");
  has(message, what);
  has(message, "allowed: ");
}

void check_file_refused(std::string_view text, std::string_view place, std::string_view what) {
  const std::string message = error_of([&] { (void)load_file(text); });
  has(message, place);
  has(message, what);
}

}  // namespace

TEST_CASE("load_options: without sources every option has its default", "[config]") {
  const ServeOptions options = load_options({}).options;
  CHECK(options.host == "127.0.0.1");
  CHECK(options.kv_budget_bytes == 1ULL << 30U);
  CHECK(options.threads == 0);
  CHECK(options.prefix_cache);
}

TEST_CASE("load_options: a flag beats the environment, which beats the file", "[config]") {
  const TemporaryFolder folder;
  ConfigSources sources;
  sources.config_path = folder.write("k.toml", "threads = 3\nstep_tokens = 33\ncontext = 333\n");
  CHECK(load_options(sources).options.threads == 3);
  sources.environment = {{"KVASIR_THREADS", "5"}, {"KVASIR_STEP_TOKENS", "55"}};
  CHECK(load_options(sources).options.threads == 5);
  sources.flags = {{"threads", "7"}};
  const ServeOptions options = load_options(sources).options;
  CHECK(options.threads == 7);
  CHECK(options.step_tokens == 55);
  CHECK(options.context_tokens == 333);
}

TEST_CASE("load_options: KVASIR_CONFIG names the file unless a flag does", "[config]") {
  const TemporaryFolder folder;
  ConfigSources sources;
  sources.environment = {{"KVASIR_CONFIG", folder.write("environment.toml", "threads = 3\n")}};
  CHECK(load_options(sources).options.threads == 3);
  sources.config_path = folder.write("flag.toml", "threads = 4\n");
  CHECK(load_options(sources).options.threads == 4);
}

TEST_CASE("load_options: of a flag given twice the last one counts", "[config]") {
  CHECK(load_flags({{"threads", "2"}, {"threads", "3"}}).options.threads == 3);
}

TEST_CASE("load_options: sizes are plain bytes or have KiB, MiB or GiB", "[config]") {
  const auto budget = [](const std::string& text) {
    return load_flags({{"kv-budget", text}}).options.kv_budget_bytes;
  };
  CHECK(budget("1") == 1);
  CHECK(budget("4096") == 4096);
  CHECK(budget("3KiB") == 3072);
  CHECK(budget("512MiB") == 512ULL << 20U);
  CHECK(budget("16384GiB") == 1ULL << 44U);
  CHECK(load_file("kv_budget = \"2GiB\"").options.kv_budget_bytes == 2ULL << 30U);
  CHECK(load_file("kv_budget = 4096").options.kv_budget_bytes == 4096);
}

TEST_CASE("load_options: a size that is not one is refused with the allowed suffixes", "[config]") {
  for (const char* text :
       {"12GB", "12 GiB", "GiB", "1.5GiB", "1e9", "0x10", "12gib", "12GiBGiB", "- 1", "-"}) {
    check_flag_refused("kv-budget", text, "is not a size");
  }
  check_flag_refused("kv-budget", "12GB", "with KiB, MiB or GiB");
  for (const char* text :
       {"0", "0GiB", "-1", "18446744073709551616", "18446744073709551615", "16385GiB",
        "17179869185GiB", "17592186044417", "-1GiB", "99999999999999999999999999999999999GiB"}) {
    check_flag_refused("kv-budget", text, "is out of range");
  }
  check_flag_refused("kv-budget", "", "is not a size");
}

TEST_CASE("load_options: a number outside its bounds is refused with the bounds", "[config]") {
  for (const char* text : {"-1", "70000", "65536", "4294967296", "18446744073709551616"}) {
    check_flag_refused("http-port", text, "from 0 to 65535");
  }
  for (const char* text : {"0", "10000", "-2"}) {
    check_flag_refused("threads", text, "from 1 to 1024, or auto");
  }
  for (const char* text : {"", "1.0", " 1", "1 ", "+1", "one", "1e3", "0x1", "Auto"}) {
    check_flag_refused("threads", text, "is not a whole number");
  }
}

TEST_CASE("load_options: bounds themselves are allowed", "[config]") {
  CHECK(load_flags({{"http-port", "0"}}).options.http_port == 0);
  CHECK(load_flags({{"http-port", "65535"}}).options.http_port == 65535);
  CHECK(load_flags({{"threads", "1"}}).options.threads == 1);
  CHECK(load_flags({{"threads", "1024"}}).options.threads == 1024);
}

TEST_CASE("load_options: auto stands for the machine's or the model's number", "[config]") {
  CHECK(load_flags({{"threads", "4"}, {"threads", "auto"}}).options.threads == 0);
  CHECK(load_file("context = \"auto\"").options.context_tokens == 0);
}

TEST_CASE("load_options: choices, switches and texts are checked", "[config]") {
  check_flag_refused("kv-type", "f64", "f32, f16 or bf16");
  check_flag_refused("isa", "AVX2", "auto, scalar, avx2, avxvnni or avx512");
  check_flag_refused("prefix-cache", "1", "true or false");
  check_flag_refused("model", "", "is empty");
  CHECK_FALSE(load_flags({{"prefix-cache", "false"}}).options.prefix_cache);
  CHECK_FALSE(load_file("prefix_cache = false").options.prefix_cache);
}

TEST_CASE("load_options: a bad line of the file is named with file, line and key", "[config]") {
  check_file_refused("\nthreads = 0\n", "kvasir.toml:2: threads: ", "from 1 to 1024");
  check_file_refused("thread = 1\n", "kvasir.toml:1: ", "unknown key \"thread\"");
  check_file_refused("threads = 1\nthreads = 2\n", "kvasir.toml:2: ", "threads");
  check_file_refused("threads = \"2\"\n", "kvasir.toml:1: threads: ", "is a string");
  check_file_refused("threads = 2.0\n", "kvasir.toml:1: threads: ", "is a float");
  check_file_refused("threads = [2]\n", "kvasir.toml:1: threads: ", "is an array");
  check_file_refused("host = 1\n", "kvasir.toml:1: host: ", "is an integer");
  check_file_refused("prefix_cache = \"true\"\n", "kvasir.toml:1: prefix_cache: ", "is a string");
  check_file_refused("\n[serve]\nthreads = 2\n", "kvasir.toml:2: ", "unknown key \"serve\"");
  check_file_refused("kv_budget = 18446744073709551616\n", "kvasir.toml:1: ", "");
  check_file_refused("kv_budget = -1\n", "kvasir.toml:1: kv_budget: ", "out of range");
  check_file_refused("kv_budget = \"12GB\"\n", "kvasir.toml:1: kv_budget: ", "KiB, MiB or GiB");
  check_file_refused("http_port = 70000\n", "kvasir.toml:1: http_port: ", "from 0 to 65535");
  check_file_refused("threads = \n", "kvasir.toml:1: ", "");
  check_file_refused("model = \"a\\u0000b\"\n", "kvasir.toml:1: model: ", "has a NUL byte");
}

TEST_CASE("load_options: a file that cannot be one is refused, also a folder or a FIFO",
          "[config]") {
  const TemporaryFolder folder;
  const auto refuse = [](const std::string& path, std::string_view what) {
    ConfigSources sources;
    sources.config_path = path;
    const std::string message = error_of([&] { (void)load_options(sources); });
    has(message, "command line: --config: ");
    has(message, what);
  };
  refuse(folder.path() + "/none.toml", "does not exist");
  refuse("", "does not exist");
  refuse(folder.path(), "is not a regular file");
  const std::string fifo = folder.path() + "/fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  refuse(fifo, "is not a regular file");
  refuse(folder.write("large.toml", std::string((1U << 20U) + 1, '#')), "is too large");
}

TEST_CASE("load_options: a bad variable is named, an unknown one only warned about", "[config]") {
  const std::string message = error_of([] {
    (void)load_environment({{"KVASIR_KV_BUDGET", "12GB"}});
  });
  has(message, "environment: KVASIR_KV_BUDGET: \"12GB\" is not a size");
  const LoadedOptions loaded = load_environment({{"KVASIR_THREDS", "2"},
                                                 {"KVASIR_TEST_SEED", "2"},
                                                 {"KVASIR_SIM_STEPS", "2"},
                                                 {"OTHER", "x"}});
  REQUIRE(loaded.warnings.size() == 1);
  has(loaded.warnings[0], "KVASIR_THREDS");
}

TEST_CASE("load_options: what a user wrote cannot break the one line of an error", "[config]") {
  const std::string message = error_of([] {
    (void)load_flags({{"threads", "1\n2\x1b[2J\"\xff" + std::string(300, 'x')}});
  });
  has(message, "\"1\\x0a2\\x1b[2J\\\"\\xff");
  CHECK(message.size() < 250);
}

// An error found after loading (a context over the model's) said --context to people who had set
// KVASIR_CONTEXT or a line of a file.
TEST_CASE("load_options: the place of the value that counts is kept", "[config]") {
  const TemporaryFolder folder;
  ConfigSources sources;
  const std::string file =
      folder.write("k.toml", "\nthreads = 3\nstep_tokens = 33\ncontext = 33\n");
  sources.config_path = file;
  sources.environment = {{"KVASIR_THREADS", "5"}, {"KVASIR_STEP_TOKENS", "55"}};
  sources.flags = {{"threads", "7"}};
  const LoadedOptions loaded = load_options(sources);
  CHECK(origin_of(loaded, "threads") == "command line: --threads");
  CHECK(origin_of(loaded, "step-tokens") == "environment: KVASIR_STEP_TOKENS");
  CHECK(origin_of(loaded, "context") == file + ":4: context");
  CHECK(origin_of(loaded, "kv-budget") == "default of --kv-budget");
  CHECK(loaded.origins.size() == 3);
}

TEST_CASE("load_options: a share is any decimal number from 0 to 1", "[config]") {
  const auto share = [](const std::string& text) {
    return load_flags({{"kv-audit", text}}).options.kv_audit_rate;
  };
  CHECK(share("0") == 0.0);
  CHECK(share("1") == 1.0);
  CHECK(share("0.25") == 0.25);
  CHECK(share("1e-3") == 1e-3);
  CHECK(load_file("kv_audit = 1").options.kv_audit_rate == 1.0);
  CHECK(load_file("kv_audit = 0.1").options.kv_audit_rate == 0.1);
  for (const char* text : {"half", "", "1 ", " 1", "0.5x", "nan", "0x1", "50%", "0,5"}) {
    check_flag_refused("kv-audit", text, "is not a number; allowed: a number from 0 to 1");
  }
  for (const char* text : {"1.0001", "-0.1", "inf", "-inf", "1e999", "1e-999"}) {
    check_flag_refused("kv-audit", text, "is out of range; allowed: a number from 0 to 1");
  }
  check_file_refused("kv_audit = \"0.5\"\n", "kvasir.toml:1: kv_audit: ", "is a string");
  check_file_refused("kv_audit = nan\n", "kvasir.toml:1: kv_audit: ", "is not a number");
}
