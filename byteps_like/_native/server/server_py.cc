#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/incarnation.h"
#include "byteps_like/_native/server/entrance.h"
#include "server/server.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Aggregators = std::vector<std::tuple<std::string, std::vector<uint32_t>, uint32_t, uint32_t>>;
using Owners = std::vector<std::tuple<uint32_t, uint32_t, std::vector<std::string>, uint32_t>>;

// A server and its events. Stopping joins threads: always without the GIL.
class PyServer {
 public:
  using Events = EventQueue<uint32_t, int, std::string, bool>;  // epoch, code, text, fatal

  explicit PyServer(Server::Options options) {
    options.on_event = [this](uint32_t epoch, Code code, const std::string& text, bool fatal) {
      events_.Push(epoch, static_cast<int>(code), text, fatal);
    };
    auto server = Server::Start(std::move(options));
    ThrowIfFailed(server.status());
    server_ = std::move(*server);
  }

  ~PyServer() {
    nb::gil_scoped_release release;
    Stop();
    if (fork_guard_.forked()) (void)server_.release();
  }

  void Stop() {
    if (!fork_guard_.forked()) server_->Stop();
    events_.Close();
  }

  Server& server() {
    fork_guard_.Check();
    return *server_;
  }
  Events& events() { return events_; }

 private:
  const ForkGuard fork_guard_;
  Events events_;
  std::unique_ptr<Server> server_;
};

std::map<std::string, uint64_t> StatsOf(const ShardStats& stats) {
  return {{"memory", stats.memory},
          {"keys", stats.keys},
          {"rounds", stats.rounds},
          {"open_rounds", stats.open_rounds},
          {"links", stats.links},
          {"frames_received", stats.frames_received},
          {"frames_sent", stats.frames_sent},
          {"payload_received", stats.payload_received},
          {"payload_sent", stats.payload_sent},
          {"payload_placed", stats.payload_placed},
          {"referenced", stats.referenced},
          {"repeated", stats.repeated},
          {"encoded", stats.encoded},
          {"relayed_up", stats.relayed_up},
          {"relayed_down", stats.relayed_down},
          {"replicated", stats.replicated},
          {"copies", stats.copies},
          {"copied", stats.copied},
          {"moved", stats.moved}};
}

// {"keys": number, "ranks": [[clock, counted, late, not finite, held, ages, oldest, seconds waited, and awaited]]}.
nb::dict TotalsOf(const TensorTotals& tensor) {
  nb::list ranks;
  for (const RankTotals& one : tensor.ranks)
    ranks.append(nb::make_tuple(one.clock, one.counted, one.late, one.not_finite, one.held, one.ages, one.oldest,
                                nb::make_tuple(one.waited[0], one.waited[1], one.waited[2], one.waited[3]),
                                nb::make_tuple(one.awaited[0], one.awaited[1], one.awaited[2], one.awaited[3])));
  nb::dict totals;
  totals["keys"] = tensor.keys;
  totals["ranks"] = ranks;
  return totals;
}

std::vector<ShardAddress> AddressesOf(const Owners& shards) {
  std::vector<ShardAddress> addresses;
  for (const auto& [server, shard, urls, number] : shards) addresses.push_back({server, shard, urls, number});
  return addresses;
}

PyServer* MakeServer(const std::string& job, nb::bytes secret, std::vector<std::string> urls, uint32_t shards,
                     uint64_t memory_limit, size_t segment_bytes, uint32_t kernel_queue_bytes, size_t credit_bytes) {
  Server::Options options;
  options.job = job;
  options.secret.assign(secret.c_str(), secret.size());
  options.urls = std::move(urls);
  options.shards = shards;
  options.memory_limit = memory_limit;
  options.segment_bytes = segment_bytes;
  options.kernel_queue_bytes = kernel_queue_bytes;
  options.credit_bytes = credit_bytes;
  return new PyServer(std::move(options));
}

}  // namespace

void BindServer(nb::module_& m) {
  nb::class_<PyServer> bound(m, "Server", "A summation server; see byteps_like/server/native.py.");
  BindEntrance(bound, [](PyServer& self) -> Admission& { return self.server().entrance(); });
  bound
      .def(nb::new_(&MakeServer), nb::arg("job"), nb::arg("secret"), nb::arg("urls"), nb::arg("shards") = 1,
           nb::arg("memory_limit") = 0, nb::arg("segment_bytes") = kDefaultSegment,
           nb::arg("kernel_queue_bytes") = kDefaultKernelQueue, nb::arg("credit_bytes") = EngineOptions().credit_bytes)
      .def_prop_ro("urls", [](PyServer& self) { return self.server().urls(); })
      .def(
          "set_world",
          [](PyServer& self, nb::bytes incarnation, uint32_t epoch, std::vector<uint32_t> workers, uint32_t member,
             double stall_warning, double stall_timeout, uint32_t rank, const Aggregators& aggregators,
             const std::tuple<std::string, std::vector<uint32_t>>& own, const Owners& owners, size_t least_segment,
             const Owners& chain, bool elastic) {
            ShardWorld world{epoch,  std::move(workers),        stall_warning, stall_timeout, rank,
                             member, IncarnationOf(incarnation)};
            world.elastic = elastic;
            world.own.rack = std::get<0>(own);
            world.own.ranks = std::get<1>(own);
            for (const auto& [rack, ranks, number, shards] : aggregators)
              world.aggregators.push_back({rack, ranks, number, shards});
            world.chain = AddressesOf(chain);
            const std::vector<ShardAddress> addresses = AddressesOf(owners);
            Server& server = self.server();
            BlockWithoutGil([&] {
              server.SetWorld(world, addresses, least_segment);
              return true;
            });
          },
          nb::arg("incarnation"), nb::arg("epoch"), nb::arg("workers"), nb::arg("member"), nb::arg("stall_warning"),
          nb::arg("stall_timeout"), nb::arg("rank") = 0, nb::arg("aggregators") = Aggregators(),
          nb::arg("own") = std::tuple<std::string, std::vector<uint32_t>>(), nb::arg("owners") = Owners(),
          nb::arg("least_segment") = EngineOptions().least_segment, nb::arg("chain") = Owners(),
          nb::arg("elastic") = false,
          "`aggregators`: (rack, ranks, member, shards) of servers that pass sums on to this one. `own`: (rack, ranks) "
          "if it is one itself, whose sums go on to `owners`: (server, shard, urls, member). `chain`: the same of all "
          "shards, as workers number them, where store keys may have copies. `elastic`: sums are finished without "
          "workers that are gone.")
      .def(
          "fail",
          [](PyServer& self, uint32_t epoch, int code, const std::string& text) {
            self.server().Fail(epoch, CodeFrom(static_cast<uint32_t>(code)), text);
          },
          nb::arg("epoch"), nb::arg("code"), nb::arg("text"), "This epoch has failed, for all its workers.")
      .def(
          "leave_out", [](PyServer& self, uint32_t epoch, uint32_t rank) { self.server().LeaveOut(epoch, rank); },
          nb::arg("epoch"), nb::arg("rank"), "This worker of the epoch has died, and the others go on.")
      .def(
          "go_on_without",
          [](PyServer& self, uint32_t epoch, uint32_t server) { self.server().GoOnWithout(epoch, server); },
          nb::arg("epoch"), nb::arg("server"), "This server of the epoch is gone, and the others go on.")
      .def(
          "hand_over", [](PyServer& self, uint32_t epoch, bool sealed) { self.server().HandOver(epoch, sealed); },
          nb::arg("epoch"), nb::arg("sealed"),
          "Other servers get copies of all values that this one keeps, and have the same ever after. `sealed`: nothing "
          "more comes from workers.")
      .def_prop_ro(
          "to_hand_over", [](PyServer& self) { return self.server().to_hand_over(); },
          "How much nobody else has, as of the last `hand_over`; None: that isn't known yet.")
      .def(
          "next_event",
          [](PyServer& self, double seconds) { return BlockWithoutGil([&] { return self.events().Pop(seconds); }); },
          nb::arg("seconds"), "(epoch, code, text, fatal), or None after `seconds` or once stopped.")
      .def(
          "stats",
          [](PyServer& self) {
            std::vector<std::map<std::string, uint64_t>> shards;
            for (const auto& shard : self.server().shards()) shards.push_back(StatsOf(shard->stats()));
            return shards;
          },
          "Counters, one dict per shard.")
      .def(
          "kept",
          [](PyServer& self) {
            nb::list shards;
            for (const auto& shard : self.server().shards()) {
              nb::dict tensors;
              for (const TensorTotals& one : shard->figures().Read()) tensors[nb::int_(one.tensor)] = TotalsOf(one);
              shards.append(tensors);
            }
            return shards;
          },
          "What store keys have counted, by tensor id, one dict per shard.")
      .def("stop", &PyServer::Stop, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace byteps_like
