// Key files and what is refused of them, who is let in, and what separates tenants.
#include "server/api_keys.h"

#include "server/keyed_digest.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

#include <set>
#include <string>
#include <sys/stat.h>
#include <vector>

using namespace kvasir;
using namespace kvasir::server;

namespace {

/// The error of loading a file with these bytes; it must not show the bytes themselves.
std::string error_of(std::string_view bytes) {
  const testing::TemporaryFolder folder;
  ApiKeys keys;
  const auto loaded = keys.load(folder.write("keys", bytes));
  REQUIRE(!loaded);
  CHECK(loaded.error().code == ErrorCode::kInvalidConfig);
  CHECK(loaded.error().message.find(folder.path_of("keys")) != std::string::npos);
  CHECK(loaded.error().message.find("SECRET") == std::string::npos);
  CHECK(!keys.required());
  return loaded.error().message;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("ApiKeys: without a file everybody is tenant 0", "[server]") {
  const ApiKeys keys;
  CHECK(!keys.required());
  CHECK(keys.tenant_of({}) == 0U);
  CHECK(keys.tenant_of("Bearer whatever") == 0U);
}

TEST_CASE("ApiKeys: every key of the file is let in, and nothing near it", "[server]") {
  const testing::TemporaryFolder folder;
  ApiKeys keys;
  const std::string longest(512, 'k');
  REQUIRE(keys.load(folder.write(
      "keys", "# a comment\n\n  \nsk-first\r\nsk-second  \n#sk-out\n" + longest + "\nlast~!")));
  CHECK(keys.required());
  for (const std::string& key :
       {std::string("sk-first"), std::string("sk-second"), longest, std::string("last~!")}) {
    for (const char* scheme : {"Bearer ", "bearer ", "BEARER ", "bEaReR   "}) {
      const auto tenant = keys.tenant_of(std::string(scheme) + key);
      REQUIRE(tenant);
      CHECK(*tenant != 0);
    }
  }
  const std::vector<std::string> refused = {"",
                                            " ",
                                            "Bearer",
                                            "Bearer ",
                                            "Bearer    ",
                                            "Bearer sk-firs",
                                            "Bearer sk-first1",
                                            "Bearer sk-firsT",
                                            "Bearer SK-FIRST",
                                            "Bearer sk-first,Bearer sk-first",
                                            "Bearer sk-first sk-first",
                                            "Bearer sk-first\t",
                                            "Bearer\tsk-first",
                                            "Basic sk-first",
                                            "sk-first",
                                            "Bearersk-first",
                                            "Bearer: sk-first",
                                            "Bearer \"sk-first\"",
                                            "Bearer #sk-out",
                                            "Bearer sk-out",
                                            "Bearer # a comment",
                                            "Bearer sk-first\r",
                                            "Bearer sk-first" + std::string(1, '\0'),
                                            "Bearer " + std::string(511, 'k'),
                                            "Bearer " + std::string(513, 'k'),
                                            "Bearer " + std::string(1U << 20U, 'k'),
                                            "Token sk-first",
                                            "Bearer sk-first\nsk-second"};
  for (const std::string& authorization : refused) {
    const auto tenant = keys.tenant_of(authorization);
    INFO(authorization.substr(0, 60));
    REQUIRE(!tenant);
    CHECK(tenant.error().code == ErrorCode::kInvalidApiKey);
    CHECK(!has(tenant.error().message, "sk-"));
    CHECK(tenant.error().param.empty());
  }
  CHECK(keys.tenant_of({}).error().code == ErrorCode::kInvalidApiKey);
  int let_in = 0;  // of so many, some agree with a key's hash in their first bytes
  for (int i = 0; i < 200'000; ++i) {
    std::string field = "Bearer k";
    field += std::to_string(i);
    let_in += keys.tenant_of(field).has_value() ? 1 : 0;
  }
  CHECK(let_in == 0);
}

TEST_CASE("ApiKeys: a key's tenant is its own, and stays through reloads", "[server]") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("keys", "one\ntwo\n");
  ApiKeys keys;
  REQUIRE(keys.load(path));
  const auto one = keys.tenant_of("Bearer one");
  const auto two = keys.tenant_of("Bearer two");
  REQUIRE(one);
  REQUIRE(two);
  CHECK(*one != *two);
  folder.write("keys", "three\ntwo\n");
  REQUIRE(keys.load(path));
  CHECK(keys.tenant_of("Bearer two") == *two);
  CHECK(!keys.tenant_of("Bearer one"));
  const auto three = keys.tenant_of("Bearer three");
  REQUIRE(three);
  CHECK(*three != *one);
  ApiKeys other_run;
  folder.write("keys", "one\n");
  REQUIRE(other_run.load(path));
  CHECK(other_run.tenant_of("Bearer one") != *one);
}

TEST_CASE("ApiKeys: a reload that fails leaves the old keys", "[server]") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("keys", "old\n");
  ApiKeys keys;
  REQUIRE(keys.load(path));
  folder.write("keys", "");
  CHECK(!keys.load(path));
  folder.write("keys",
               "new\nb\xC3\xA4"
               "d\n");
  CHECK(!keys.load(path));
  CHECK(keys.required());
  CHECK(keys.tenant_of("Bearer old"));
  CHECK(!keys.tenant_of("Bearer new"));
}

TEST_CASE("ApiKeys: a file that is no list of keys is refused by its line and never shown",
          "[server]") {
  CHECK(has(error_of(""), "holds no key"));
  CHECK(has(error_of("\n \r\n# SECRET\n"), "holds no key"));
  CHECK(has(error_of("ok\nSECRET key\n"), "line 2 has a character"));
  CHECK(has(error_of("\n\n SECRET\n"), "line 3 has a character"));
  CHECK(has(error_of("SECRET\t\n"), "line 1 has a character"));
  CHECK(has(error_of("ok\n\nSECRET\xC3\xA9"), "line 3 has a character"));
  CHECK(has(error_of("SECRET\x7F\n"), "line 1 has a character"));
  CHECK(has(error_of(std::string("SECRET\0", 7)), "line 1 has a character"));
  CHECK(has(error_of("\xEF\xBB\xBFSECRET\n"), "line 1 has a character"));
  CHECK(has(error_of("a\nSECRET" + std::string(507, 'x')), "line 2 is longer than 512 bytes"));
  CHECK(has(error_of("#" + std::string(1U << 20U, 'x')), "larger than 1048576 bytes"));
  std::string many;
  for (int i = 0; i < 4097; ++i) many.append("k").append(std::to_string(i)).append("\n");
  CHECK(has(error_of(many), "more than 4096 keys"));
}

TEST_CASE("ApiKeys: what is no file to read is refused without waiting", "[server]") {
  const testing::TemporaryFolder folder;
  const auto message_of = [&](const std::string& path) {
    ApiKeys keys;
    const auto loaded = keys.load(path);
    REQUIRE(!loaded);
    CHECK(loaded.error().code == ErrorCode::kInvalidConfig);
    return loaded.error().message;
  };
  CHECK(has(message_of(folder.path_of("missing")), "cannot be read: No such file"));
  CHECK(has(message_of(folder.path_of(".")), "is a folder"));
  CHECK(has(message_of("/dev/null"), "is a device"));
  REQUIRE(mkfifo(folder.path_of("pipe").c_str(), 0600) == 0);
  CHECK(has(message_of(folder.path_of("pipe")), "is a pipe"));
  CHECK(has(message_of(""), "is no path"));
  CHECK(has(message_of(std::string("a\0b", 3)), "is no path"));
  CHECK(!has(message_of("new\nline"), "\n"));
}

TEST_CASE("KeyedDigest: lists of parts do not run together, and each secret has its own",
          "[server]") {
  const KeyedDigest digest;
  std::set<std::uint64_t> seen = {0};
  CHECK(seen.insert(digest.of({})).second);
  CHECK(seen.insert(digest.of({""})).second);
  CHECK(seen.insert(digest.of({"", ""})).second);
  CHECK(seen.insert(digest.of({"ab", "c"})).second);
  CHECK(seen.insert(digest.of({"a", "bc"})).second);
  CHECK(seen.insert(digest.of({"abc"})).second);
  CHECK(seen.insert(digest.of({std::string_view("abc\0", 4)})).second);
  CHECK(seen.insert(digest.of({"a", "b"})).second);  // nor by what might stand between parts
  CHECK(seen.insert(digest.of({std::string_view("a\0\0\0\0\0\0\0\0b", 10)})).second);
  CHECK(digest.of({"ab", "c"}) == digest.of({"ab", "c"}));
  CHECK(KeyedDigest().of({"abc"}) != digest.of({"abc"}));
}
