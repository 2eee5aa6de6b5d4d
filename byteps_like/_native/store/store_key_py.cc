// byteps_like._core.StoreKey and TableKey: store keys with memory of their own, for their comparison with
// byteps_like/store/key.py and rows.py.
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
#include <span>
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

// (source, clock, what became of it, version, contributors).
using Answers = std::vector<std::tuple<uint32_t, int64_t, int, int64_t, std::vector<uint32_t>>>;
// Of any type, read-only.
using View = nb::ndarray<nb::numpy, nb::ro, nb::c_contig, nb::device::cpu>;

Answers Listed(const std::vector<PushAnswer>& answers) {
  Answers listed;
  for (const PushAnswer& one : answers)
    listed.emplace_back(one.push.source, one.push.clock, static_cast<int>(one.applied), one.version,
                        one.contributors());
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

// What keys of all contents have.
class PyKey {
 public:
  PyKey(std::string_view policy, std::string_view combining, std::string_view update, uint64_t limit,
        std::string_view functions = {}, std::string_view first_values = "zeros")
      : memory_(std::make_shared<Memory>(limit)),
        combining_(combining),
        update_(update),
        functions_(functions),
        first_values_(first_values),
        rules_(Rules(policy)) {}

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
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Change(Rules(policy), now, &answers));
    return Listed(answers);
  }
  Answers Rest(uint32_t source, double now) {
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Rest(source, now, &answers));
    return Listed(answers);
  }
  void Wake(uint32_t source) { key_->Wake(source); }
  void Replace(const ValueSource& value) { key_->Replace(Copied(value)); }
  Answers Restore(const ValueSource& value, const ValueSource& state, int64_t version, double now) {
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Restore(Copied(value), Copied(state), version, now, &answers));
    return Listed(answers);
  }
  int64_t Join(uint32_t source) { return key_->Join(source); }
  void Heard(uint32_t source, int64_t clock) { key_->Heard(source, clock); }
  bool MayRead(uint32_t reader) const { return key_->MayRead(reader); }
  std::optional<double> ReadyAt() const { return key_->ReadyAt(); }
  uint64_t held() const { return memory_->held; }

  template <typename Class>
  static void Bind(Class& bound) {
    using namespace nb::literals;
    bound.def("pass_time", &Class::Type::PassTime)
        .def("lose", &Class::Type::Lose)
        .def("change", &Class::Type::Change, "policy"_a, "now"_a)
        .def("rest", &Class::Type::Rest, "source"_a, "now"_a)
        .def("wake", &Class::Type::Wake, "source"_a)
        .def("join", &Class::Type::Join)
        .def("heard", &Class::Type::Heard)
        .def("may_read", &Class::Type::MayRead)
        .def("ready_at", &Class::Type::ReadyAt)
        .def_prop_ro("held", &Class::Type::held, "Bytes of its memory.");
  }

 protected:
  std::shared_ptr<const StoreRules> Rules(std::string_view policy) const {
    auto rules = StoreRules::Parse(policy, combining_, update_, functions_, first_values_);
    ThrowIfFailed(rules.status());
    return *rules;
  }
  template <typename Made>
  void Begin(Made made) {
    ThrowIfFailed(made.status());
    key_ = std::move(*made);
  }
  Answers Push(WholePush&& whole, double now) {
    std::vector<PushAnswer> answers;
    ThrowIfFailed(key_->Push(std::move(whole), now, &answers));
    return Listed(answers);
  }
  template <typename Array>
  ShardBuffer Copied(const Array& from) {
    ShardBuffer copy = memory_->shard.Take(from.nbytes());
    if (copy.size() < from.nbytes()) ThrowIfFailed(memory_->shard.Exhausted());
    if (from.nbytes() != 0) std::memcpy(copy.data(), from.data(), from.nbytes());
    return copy;
  }

  std::shared_ptr<Memory> memory_;
  const std::string combining_, update_, functions_, first_values_;
  std::shared_ptr<const StoreRules> rules_;
  std::unique_ptr<StoreKey> key_;
};

using PushTuple = std::tuple<uint32_t, int64_t, int64_t, double>;
StorePush PushOf(const PushTuple& push) {
  const auto [source, clock, base, weight] = push;
  return {source, clock, base, weight};
}

class PyStoreKey : public PyKey {
 public:
  PyStoreKey(const ValueSource& value, std::string_view policy, std::string_view combining, std::string_view update,
             uint32_t sources, double now, uint64_t limit)
      : PyKey(policy, combining, update, limit), dtype_(TypeOf(value)), bytes_(value.nbytes()) {
    for (size_t i = 0; i < value.ndim(); ++i) shape_.push_back(value.shape(i));
    Begin(StoreKey::Make(rules_, StoreValue{dtype_, ShapeOf(value), Copied(value)}, sources, now, memory_->shard));
  }

  Answers Push(const PushTuple& push, const std::optional<ValueSource>& gradient, double now, std::optional<double> lr,
               bool last) {
    StorePush made = PushOf(push);
    made.last = last;
    made.idle = !gradient;
    if (made.idle) return PyKey::Push({made, {}, lr, {}}, now);
    if (TypeOf(*gradient) != dtype_ || gradient->nbytes() != bytes_)
      throw std::invalid_argument("a gradient is as long as the value, and of its type");
    return PyKey::Push({made, Copied(*gradient), lr, {}}, now);
  }

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
  const DType dtype_;
  const size_t bytes_;
  std::vector<size_t> shape_;
};

using Ids = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Versions = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class PyTableKey : public PyKey {
 public:
  // Of rows of the type of `kind`.
  PyTableKey(const ValueSource& kind, size_t width, std::string_view policy, std::string_view combining,
             std::string_view update, uint32_t sources, double now, uint64_t limit, std::string_view functions,
             std::string_view first_values)
      : PyKey(policy, combining, update, limit, functions, first_values),
        dtype_(TypeOf(kind)),
        row_bytes_(width * SizeOf(dtype_)) {
    Begin(StoreKey::Make(rules_, StoreRows{dtype_, width}, sources, now, memory_->shard));
  }

  Answers Push(const PushTuple& push, const Ids& ids, const ValueSource& rows, double now, std::optional<double> lr,
               uint32_t function) {
    if (function > rules_->functions.size()) throw nb::value_error("there is no such function");
    if (TypeOf(rows) != dtype_ || rows.nbytes() != ids.size() * row_bytes_)
      throw std::invalid_argument("there is a row for each id, of the table's type");
    auto list = std::make_shared<IdList>(IdList{Copied(ids), ids.size()});
    StorePush made = PushOf(push);
    made.function = function;
    return PyKey::Push({made, Copied(rows), lr, {std::move(list), {}}}, now);
  }

  int64_t version() const { return key_->ledger().version(); }
  nb::bytes All(const Ids& ids, size_t most) const { return Bytes(key_->rows().All(SpanOf(ids), most)); }
  nb::bytes Stale(const Ids& ids, const Versions& known, uint64_t bound, size_t most) const {
    if (ids.size() != known.size()) throw std::invalid_argument("there is a version for each id");
    return Bytes(key_->rows().Stale(SpanOf(ids), known.data(), bound, most));
  }
  nb::bytes Range(uint64_t low, uint64_t high, size_t most, uint64_t since, size_t count) const {
    return Bytes(key_->rows().Range({low, high, since}, count, most));
  }
  // (version, updates, state) of a row that exists.
  std::optional<std::tuple<uint32_t, uint32_t, nb::bytes>> Row(uint64_t id) const {
    const auto row = key_->rows().Find(id);
    if (!row) return std::nullopt;
    return std::tuple(row->version, row->updates, nb::bytes(row->state, key_->rows().state_bytes()));
  }

 private:
  static std::span<const uint64_t> SpanOf(const Ids& ids) { return {ids.data(), ids.size()}; }
  static nb::bytes Bytes(Result<RowAnswer> answer) {
    ThrowIfFailed(answer.status());
    return nb::bytes(answer->buffer.data(), answer->bytes);
  }

  const DType dtype_;
  const size_t row_bytes_;
};

}  // namespace

void BindStoreKey(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyStoreKey> dense(m, "StoreKey", "Copies what it is given; `limit` bytes of memory, 0: any.");
  dense
      .def(nb::init<const ValueSource&, std::string_view, std::string_view, std::string_view, uint32_t, double,
                    uint64_t>(),
           "value"_a, "policy"_a, "combining"_a, "update"_a, "sources"_a, "now"_a = 0.0, "limit"_a = 0)
      .def("push", &PyStoreKey::Push, "push"_a, "gradient"_a.none(), "now"_a, "lr"_a = nb::none(), "last"_a = true,
           "`push`: source, clock, base, weight. `gradient`: None of one that is idle.")
      .def("replace", &PyStoreKey::Replace, "value"_a)
      .def("restore", &PyStoreKey::Restore, "value"_a, "state"_a, "version"_a, "now"_a)
      .def("value", &PyStoreKey::Value, "The version in force, and an array of it that stays as it is.")
      .def("state", &PyStoreKey::State);
  PyKey::Bind(dense);
  nb::class_<PyTableKey> table(m, "TableKey", "Of rows of the type of the array `kind`; otherwise as StoreKey.");
  table
      .def(nb::init<const ValueSource&, size_t, std::string_view, std::string_view, std::string_view, uint32_t, double,
                    uint64_t, std::string_view, std::string_view>(),
           "kind"_a, "width"_a, "policy"_a, "combining"_a, "update"_a, "sources"_a, "now"_a = 0.0, "limit"_a = 0,
           "functions"_a = "", "first_values"_a = "zeros")
      .def("push", &PyTableKey::Push, "push"_a, "ids"_a, "rows"_a, "now"_a, "lr"_a = nb::none(), "function"_a = 0,
           "`push`: source, clock, base, weight. `function`: of its `functions`, from 1; 0: none.")
      .def_prop_ro("version", &PyTableKey::version)
      .def("all", &PyTableKey::All, "ids"_a, "most"_a = size_t{1} << 30, "As VALUE brings it, like the next two.")
      .def("stale", &PyTableKey::Stale, "ids"_a, "known"_a, "bound"_a, "most"_a = size_t{1} << 30)
      .def("range", &PyTableKey::Range, "low"_a, "high"_a, "most"_a = size_t{1} << 30, "since"_a = 0, "count"_a = 0)
      .def("row", &PyTableKey::Row, "id"_a, "Version, updates and state of a row; None if it doesn't exist.");
  PyKey::Bind(table);
}

}  // namespace byteps_like
