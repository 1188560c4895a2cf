#include "server/grpc/facts_message.h"

#include "core/check.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace kvasir::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// Sets the field of each row. A test holds the message to the rows.
class FactSetter {
 public:
  explicit FactSetter(Message& message) : message_(message) {}

  void operator()(std::string_view name, std::uint64_t count) const {
    const FieldDescriptor& field = named(name);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64)
      return message_.GetReflection()->SetUInt64(&message_, &field, count);
    KVASIR_CHECK(count <= std::numeric_limits<std::uint32_t>::max(), name << " is " << count);
    message_.GetReflection()->SetUInt32(&message_, &field, static_cast<std::uint32_t>(count));
  }
  void operator()(std::string_view name, double number) const {
    message_.GetReflection()->SetDouble(&message_, &named(name), number);
  }
  void operator()(std::string_view name, bool value) const {
    message_.GetReflection()->SetBool(&message_, &named(name), value);
  }
  void operator()(std::string_view name, const std::string& text) const {
    message_.GetReflection()->SetString(&message_, &named(name), text);
  }
  void operator()(std::string_view name, const CauseCounts& counts) const {
    const FactSetter inside(*message_.GetReflection()->MutableMessage(&message_, &named(name)));
    for (std::size_t i = 0; i < counts.size(); ++i) inside(kCancelCauses.at(i), counts.at(i));
  }
  void operator()(std::string_view name, const std::vector<LayerGroupFacts>& groups) const {
    for (const LayerGroupFacts& group : groups) {
      Message* added = message_.GetReflection()->AddMessage(&message_, &named(name));
      for_each_fact(group, layer_group_rows(), FactSetter(*added));
    }
  }

 private:
  [[nodiscard]] const FieldDescriptor& named(std::string_view name) const {
    const FieldDescriptor* field = message_.GetDescriptor()->FindFieldByName(std::string(name));
    KVASIR_CHECK(field != nullptr, message_.GetDescriptor()->full_name() << " has no " << name);
    return *field;
  }

  Message& message_;
};

}  // namespace

v1::GetStatusResponse status_message(const KvStatus& status) {
  v1::GetStatusResponse message;
  for_each_fact(status, kv_status_rows(), FactSetter(message));
  return message;
}

void fill_kv_receipt(const KvReceipt& receipt, v1::KvReceipt& message) {
  for_each_fact(receipt, kv_receipt_rows(), FactSetter(message));
}

}  // namespace kvasir::server
