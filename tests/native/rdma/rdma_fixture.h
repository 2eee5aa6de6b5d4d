// Two ends of an rdma link with registered memory on both sides; the tests skip themselves where there is no device.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "csrc/transport/memory/registered_memory.h"
#include "csrc/transport/rdma/verbs/block.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {

inline constexpr uint32_t kTotal = 4u << 20;  // bytes of a message that goes in several frames

// True, and says so, where RDMA can't run.
inline bool NoRdma() {
  const Status viable = rdma::IsViable();
  if (!viable.ok()) MESSAGE("skipped: rdma: ", viable.message());
  return !viable.ok();
}

// Devices of this host by name, each with its first address. In the virtual machine rxe0 = rxe1, rxe2 = rxe3.
inline std::vector<rdma::LocalAddress> RdmaDevices() {
  std::vector<rdma::LocalAddress> all = rdma::LocalAddresses();
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.device < b.device; });
  const auto same = [](const auto& a, const auto& b) { return a.device == b.device; };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  return all;
}

struct Memory {  // long-lived, and known to be
  explicit Memory(size_t size) : block(size), registered(block.data(), size) {}
  std::byte* data() const { return block.data(); }
  std::span<std::byte> bytes() const { return {block.data(), block.size()}; }
  rdma::Block block;
  RegisteredMemory registered;
};

// Puts payloads for key 1 into `memory` at their offset, and sends from wherever it is told to.
class Placing final : public Peer {
 public:
  Placing(LoopThread& thread, std::unique_ptr<Stream> stream, Memory& memory)
      : Peer(thread, std::move(stream)), thread_(thread), memory_(memory) {}

  std::byte* PlaceFor(Link& link, const Header& header) override {
    return header.key == 1 && !anywhere ? memory_.data() + header.offset : Peer::PlaceFor(link, header);
  }
  void OnFrame(Link& link, const Header& header, std::byte* payload) override {
    last_payload = payload;
    Peer::OnFrame(link, header, payload);
  }
  bool NextFrame(Link& link, Outgoing& next) override {
    if (!Peer::NextFrame(link, next)) return false;
    ++asked;
    if (send_from != nullptr && next.header.key == 1) next.payload = send_from + next.header.offset;
    return true;
  }

  bool Offer(std::byte* place, uint64_t bytes) {
    bool offered = false;
    thread_.Do([&] { offered = link().Offer(Push(1, {}).header, place, bytes); });
    return offered;
  }
  void OnWithdrawn(Link&, const OfferId& what) override { withdrawn.push_back(what); }
  bool WaitWithdrawn(size_t count, double seconds = 20) {
    const Deadline limit = In(seconds);
    for (bool all = false; !all;) {
      thread_.Do([&] { all = withdrawn.size() >= count; });
      if (Clock::now() > limit) return all;
    }
    return true;
  }
  Memory& memory() { return memory_; }
  std::vector<OfferId> withdrawn;  // the loop's thread, or once they have been waited for

  const std::byte* send_from = nullptr;  // set on the loop's thread, or before anything is sent
  std::byte* last_payload = nullptr;
  uint32_t asked = 0;  // frames that the link has asked for; the loop's thread

 private:
  LoopThread& thread_;
  Memory& memory_;
};

// A frame for key 1 whose payload is `bytes` of the sender's memory from `offset` on.
inline Message Segment(uint64_t offset, uint32_t bytes, uint32_t total) {
  Message message = Push(1, {});
  message.header.offset = offset;
  message.header.length = bytes;
  message.header.total = total;
  return message;
}

struct RdmaPair {
  explicit RdmaPair(const std::string& url, size_t memory = 4u << 20) : RdmaPair(MakeStreams(url), memory) {}
  RdmaPair(StreamPair streams, size_t memory)
      : from(memory),
        to(memory),
        client(client_thread, std::move(streams.client), from),
        server(server_thread, std::move(streams.server), to) {
    client.send_from = from.data();
  }
  Memory from, to;
  LoopThread client_thread, server_thread;
  Placing client, server;
};

}  // namespace byteps_like::testing
