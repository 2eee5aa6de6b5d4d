// byteps_like._core.StoreKey: a store key with memory of its own, for its comparison with byteps_like/store/key.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/store/values_py.h"
#include "server/store/store_key.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

// (source, clock, what became of it, version).
using Answers = std::vector<std::tuple<uint32_t, int64_t, int, int64_t>>;
// Of any type, read-only.
using View = nb::ndarray<nb::numpy, nb::ro, nb::c_contig, nb::device::cpu>;

Answers Listed(const std::vector<PushAnswer>& answers) {
  Answers listed;
  for (const PushAnswer& one : answers)
    listed.emplace_back(one.push.source, one.push.clock, static_cast<int>(one.applied), one.version);
  return listed;
}

nb::dlpack::dtype NumpyTypeOf(DType dtype) {
  if (dtype == DType::kFloat32) return nb::dtype<float>();
  return dtype == DType::kFloat64 ? nb::dtype<double>() : nb::dtype<int64_t>();
}

struct Memory {
  explicit Memory(uint64_t limit) : shard("a key", limit, held) {}
  std::atomic<uint64_t> held{0};
  ShardMemory shard;
};

// Keeps a version, and the memory that it is in.
struct Reader {
  std::shared_ptr<Memory> memory;
  Snapshot snapshot;
};

class PyStoreKey {
 public:
  PyStoreKey(const ValueSource& value, std::string_view policy, std::string_view combining, std::string_view update,
             uint32_t sources, double now, uint64_t limit)
      : memory_(std::make_shared<Memory>(limit)), dtype_(TypeOf(value)), combining_(combining), update_(update) {
    for (size_t i = 0; i < value.ndim(); ++i) shape_.push_back(value.shape(i));
    auto rules = StoreRules::Parse(policy, combining, update);
    ThrowIfFailed(rules.status());
    auto made = StoreKey::Make(*rules, {dtype_, ShapeOf(value), Copied(value)}, sources, now, memory_->shard);
    ThrowIfFailed(made.status());
    key_ = std::move(*made);
    bytes_ = value.nbytes();
  }

  Answers Push(std::tuple<uint32_t, int64_t, int64_t, double> push, const ValueSource& gradient, double now,
               std::optional<double> lr) {
    if (TypeOf(gradient) != dtype_ || gradient.nbytes() != bytes_)
      throw std::invalid_argument("a gradient is as long as the value, and of its type");
    const auto [source, clock, base, weight] = push;
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Push({{source, clock, base, weight}, Copied(gradient), lr}, now, &answers));
    return Listed(answers);
  }
  Answers PassTime(double now) {
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->PassTime(now, &answers));
    return Listed(answers);
  }
  Answers Lose(uint32_t source, double now) {
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Lose(source, now, &answers));
    return Listed(answers);
  }
  Answers Change(std::string_view policy, double now) {
    auto rules = StoreRules::Parse(policy, combining_, update_);
    ThrowIfFailed(rules.status());
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Change(*rules, now, &answers));
    return Listed(answers);
  }
  Answers Rest(uint32_t source, double now) {
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Rest(source, now, &answers));
    return Listed(answers);
  }
  void Wake(uint32_t source) { key_->Wake(source); }
  int64_t Join(uint32_t source) { return key_->Join(source); }
  void Heard(uint32_t source, int64_t clock) { key_->Heard(source, clock); }
  bool MayRead(uint32_t reader) const { return key_->MayRead(reader); }
  std::optional<double> ReadyAt() const { return key_->ReadyAt(); }
  uint64_t held() const { return memory_->held; }

  // The version in force, and the value of it, which is kept while the array is there.
  std::pair<int64_t, View> Value() const {
    auto* const reader = new Reader{memory_, key_->value()};
    const nb::capsule owner(reader, [](void* kept) noexcept { delete static_cast<Reader*>(kept); });
    const int64_t version = reader->snapshot.version;
    return {version,
            View(reader->snapshot.value->data(), shape_.size(), shape_.data(), owner, nullptr, NumpyTypeOf(dtype_))};
  }
  nb::bytes State() const { return nb::bytes(key_->state().data(), key_->state().size()); }

 private:
  ShardBuffer Copied(const ValueSource& from) {
    ShardBuffer copy = memory_->shard.Take(from.nbytes());
    if (copy.size() < from.nbytes()) ThrowIfFailed(memory_->shard.Exhausted());
    if (from.nbytes() != 0) std::memcpy(copy.data(), from.data(), from.nbytes());
    return copy;
  }

  std::shared_ptr<Memory> memory_;
  std::vector<size_t> shape_;
  DType dtype_;
  const std::string combining_, update_;
  size_t bytes_ = 0;
  std::unique_ptr<StoreKey> key_;
};

}  // namespace

void BindStoreKey(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyStoreKey>(m, "StoreKey", "Copies what it is given; `limit` bytes of memory, 0: any.")
      .def(nb::init<const ValueSource&, std::string_view, std::string_view, std::string_view, uint32_t, double,
                    uint64_t>(),
           "value"_a, "policy"_a, "combining"_a, "update"_a, "sources"_a, "now"_a = 0.0, "limit"_a = 0)
      .def("push", &PyStoreKey::Push, "push"_a, "gradient"_a, "now"_a, "lr"_a = nb::none(),
           "`push`: source, clock, base, weight.")
      .def("pass_time", &PyStoreKey::PassTime)
      .def("lose", &PyStoreKey::Lose)
      .def("change", &PyStoreKey::Change, "policy"_a, "now"_a)
      .def("rest", &PyStoreKey::Rest, "source"_a, "now"_a)
      .def("wake", &PyStoreKey::Wake, "source"_a)
      .def("join", &PyStoreKey::Join)
      .def("heard", &PyStoreKey::Heard)
      .def("may_read", &PyStoreKey::MayRead)
      .def("ready_at", &PyStoreKey::ReadyAt)
      .def_prop_ro("held", &PyStoreKey::held, "Bytes of its memory.")
      .def("value", &PyStoreKey::Value, "The version in force, and an array of it that stays as it is.")
      .def("state", &PyStoreKey::State);
}

}  // namespace byteps_like
