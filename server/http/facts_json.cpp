#include "server/http/facts_json.h"

#include <cstddef>
#include <string_view>

namespace kvasir::server {
namespace {

class FactWriter {
 public:
  explicit FactWriter(JsonWriter& json) : json_(json) {}

  void operator()(std::string_view name, std::uint64_t count) const { json_.member(name, count); }
  void operator()(std::string_view name, double number) const { json_.key(name).number(number); }
  void operator()(std::string_view name, bool value) const { json_.key(name).boolean(value); }
  void operator()(std::string_view name, const std::string& text) const {
    json_.member(name, text);
  }
  void operator()(std::string_view name, const CauseCounts& counts) const {
    json_.key(name).begin_object();
    for (std::size_t i = 0; i < counts.size(); ++i) json_.member(kCancelCauses.at(i), counts.at(i));
    json_.end_object();
  }
  void operator()(std::string_view name, const std::vector<LayerGroupFacts>& groups) const {
    json_.key(name).begin_array();
    for (const LayerGroupFacts& group : groups) {
      json_.begin_object();
      for_each_fact(group, layer_group_rows(), *this);
      json_.end_object();
    }
    json_.end_array();
  }

 private:
  JsonWriter& json_;
};

}  // namespace

std::string kv_status_body(const KvStatus& status) {
  JsonWriter json;
  json.begin_object().member("object", "kv.status");
  for_each_fact(status, kv_status_rows(), FactWriter(json));
  json.end_object();
  return json.take();
}

void write_kv_receipt(const KvReceipt& receipt, JsonWriter& json) {
  json.begin_object();
  for_each_fact(receipt, kv_receipt_rows(), FactWriter(json));
  json.end_object();
}

}  // namespace kvasir::server
