// The gRPC door in one process with the REST door, over one engine: what both say of one request
// is the same, and health follows readiness.
#ifdef KVASIR_WITH_GRPC
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kvasir/v1/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

using namespace kvasir;
using namespace kvasir::server;
using namespace kvasir::server::testing;
using nlohmann::json;

namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

struct BothDoors : TestServer {
  explicit BothDoors(const TestEngineOptions& options = {})
      : TestServer(with_findings(options, *this)) {
    GrpcOptions grpc_options;
    grpc_options.port = 0;
    grpc_door = std::make_unique<GrpcServer>(grpc_options, *service);
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(grpc_door->port()),
                                  grpc::InsecureChannelCredentials());
    stub = v1::Inference::NewStub(channel);
    health = Health::NewStub(channel);
  }
  ~BothDoors() {
    executor.open_gate();
    grpc_door->stop();
  }

  grpc::Status complete(const v1::CompleteRequest& request, v1::CompleteResponse& response) const {
    grpc::ClientContext context;
    return stub->Complete(&context, request, &response);
  }
  [[nodiscard]] HealthCheckResponse::ServingStatus check() const {
    grpc::ClientContext context;
    HealthCheckResponse response;
    REQUIRE(health->Check(&context, HealthCheckRequest(), &response).ok());
    return response.status();
  }

  /// As `kvasir serve` does.
  static TestEngineOptions with_findings(TestEngineOptions options, BothDoors& doors) {
    options.on_audit_finding = [&doors] { doors.grpc_door->publish_readiness(); };
    return options;
  }

  std::unique_ptr<GrpcServer> grpc_door;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> stub;
  std::unique_ptr<Health::Stub> health;
};

v1::CompleteRequest completion(const std::string& prompt, std::int64_t max_tokens) {
  v1::CompleteRequest request;
  request.add_prompt()->set_text(prompt);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

/// As JSON has it; protobuf's writes 64-bit numbers as texts.
json receipt_json(const v1::KvReceipt& receipt) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  REQUIRE(google::protobuf::util::MessageToJsonString(receipt, &text, options).ok());
  json out = json::parse(text);
  for (auto& member : out.items()) {
    if (member.key() != "formula") member.value() = std::stoull(member.value().get<std::string>());
  }
  return out;
}

/// What the status tells of the time to try again; 0 for nothing.
std::int64_t retry_seconds(const grpc::Status& status) {
  google::rpc::Status details;
  REQUIRE(details.ParseFromString(status.error_details()));
  google::rpc::RetryInfo retry;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&retry)) return retry.retry_delay().seconds();
  }
  return 0;
}

}  // namespace

TEST_CASE("GrpcServer: one receipt at both doors, cold, warm, forked and streamed", "[server]") {
  BothDoors doors;
  Client client(doors);
  for (const std::int64_t n : {1, 1, 4}) {
    const std::string prompt(20 + static_cast<std::size_t>(n), 'x');
    json body = {{"prompt", prompt},   {"max_tokens", 5},    {"n", n},
                 {"ignore_eos", true}, {"kv_receipt", true}, {"cache_salt", "rest"}};
    const json rest = client.post("/v1/completions", body.dump()).json()["usage"]["kv_cache"];
    v1::CompleteRequest request = completion(prompt, 5);
    request.set_n(n);
    request.set_cache_salt("grpc");
    v1::CompleteResponse response;
    REQUIRE(doors.complete(request, response).ok());
    CHECK(receipt_json(response.usage().kv_cache()) == rest);
    request.set_kv_receipt(false);
    v1::CompleteResponse without;
    REQUIRE(doors.complete(request, without).ok());
    CHECK_FALSE(without.usage().has_kv_cache());
    // Keep what the two salts know alike.
    static_cast<void>(client.post("/v1/completions", body.dump()));
    grpc::ClientContext context;
    request.clear_kv_receipt();
    const auto stream = doors.stub->CompleteStream(&context, request);
    v1::CompleteChunk chunk;
    v1::Usage usage;
    while (stream->Read(&chunk)) {
      if (chunk.has_usage()) usage = chunk.usage();
    }
    CHECK(stream->Finish().ok());
    CHECK(receipt_json(usage.kv_cache()) ==
          client.post("/v1/completions", body.dump()).json()["usage"]["kv_cache"]);
  }
}

TEST_CASE("GrpcServer: both doors refuse what can never fit in the same words", "[server]") {
  BothDoors doors(TestEngineOptions{.num_blocks = 4});
  Client client(doors);
  const std::string prompt(70, 'x');
  const ClientResponse rest =
      client.post("/v1/completions", json{{"prompt", prompt}, {"max_tokens", 5}}.dump());
  v1::CompleteResponse response;
  const grpc::Status status = doors.complete(completion(prompt, 5), response);
  CHECK(rest.status == 400);
  CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(rest.json()["error"]["message"] == status.error_message());
  CHECK(status.error_message() ==
        "the prompt of 70 tokens with max_tokens 5 needs 10240 bytes of KV cache, but the whole "
        "budget is 8192 bytes; the longest prompt that would fit has 60 tokens");
}

TEST_CASE("GrpcServer: both doors say alike when a full queue may be tried again", "[server]") {
  BothDoors doors(TestEngineOptions{.max_waiting = 1});
  Client client(doors);
  doors.executor.close_gate();
  CompletionFields fields;
  fields.prompts = {std::string("x")};
  fields.n = 9;
  const auto running = doors.service->complete(fields, [] {});
  REQUIRE(running.has_value());
  REQUIRE(eventually([&] { return doors.executor.is_held(); }));
  doors.clock.advance(std::chrono::seconds(3));  // that the first step takes
  doors.executor.allow_steps(1);
  REQUIRE(eventually([&] { return doors.engine->status().retry_after_seconds > 1; }));
  REQUIRE(eventually([&] { return doors.executor.is_held(); }));
  const ClientResponse rest = client.post("/v1/completions", R"({"prompt":"x"})");
  v1::CompleteResponse response;
  const grpc::Status status = doors.complete(completion("x", 1), response);
  CHECK(rest.status == 429);
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  const std::int64_t estimate = doors.engine->status().retry_after_seconds;
  CHECK(estimate >= 3);
  CHECK(rest.fields.at("retry-after") == std::to_string(estimate));
  CHECK(retry_seconds(status) == estimate);
  CHECK(client.get("/v1/kv/status").json()["retry_after_seconds"] == estimate);
}

TEST_CASE("GrpcServer: both doors turn when the server drains", "[server]") {
  BothDoors doors;
  Client client(doors);
  CHECK(client.get("/readyz").status == 200);
  CHECK(doors.check() == HealthCheckResponse::SERVING);
  doors.service->set_readiness(Readiness::kDraining);
  CHECK(client.get("/readyz").error_code() == "draining");
  CHECK(doors.check() == HealthCheckResponse::NOT_SERVING);
  v1::CompleteResponse response;
  const grpc::Status status = doors.complete(completion("x", 1), response);
  CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(retry_seconds(status) == 5);
}

TEST_CASE("GrpcServer: a failed audit turns both doors off where the operator is strict",
          "[server]") {
  for (const bool strict : {true, false}) {
    BothDoors doors(TestEngineOptions{.audit_rate = 1.0, .service = {.audit_strict = strict}});
    Client client(doors);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto watch = doors.health->Watch(&context, HealthCheckRequest());
    HealthCheckResponse seen;
    REQUIRE(watch->Read(&seen));
    CHECK(seen.status() == HealthCheckResponse::SERVING);
    const json body = {{"prompt", std::string(40, 'x')}, {"max_tokens", 2}};
    client.post("/v1/completions", body.dump());
    doors.executor.make_stale();
    client.post("/v1/completions", body.dump());  // finds its prefix, which is then audited
    REQUIRE(eventually([&] { return doors.engine->status().audit_mismatches_total > 0; }));
    const ClientResponse ready = client.get("/readyz");
    CHECK(client.get("/livez").status == 200);
    CHECK(client.get("/v1/kv/status").json()["readiness"] == (strict ? "not_serving" : "ready"));
    if (strict) {
      CHECK(ready.status == 503);
      CHECK(ready.error_code() == "engine_unavailable");
      CHECK(ready.json()["error"]["message"] ==
            "the truth check found 1 cached prefixes that were not what is computed (see the log)");
      CHECK(client.get("/v2/health/ready").status == 503);
      REQUIRE(watch->Read(&seen));  // told without anybody's asking
      CHECK(seen.status() == HealthCheckResponse::NOT_SERVING);
      CHECK(doors.check() == HealthCheckResponse::NOT_SERVING);
    } else {
      CHECK(ready.status == 200);
      CHECK(doors.check() == HealthCheckResponse::SERVING);
    }
    // Work that comes all the same is done.
    CHECK(client.post("/v1/completions", body.dump()).status == 200);
    CHECK(client.get("/metrics")
              .body.find("kvasir_kv_audit_mismatches_total{engine=\"0\","
                         "model_name=\"tiny/model\"} 1") != std::string::npos);
    context.TryCancel();
  }
}
#endif
