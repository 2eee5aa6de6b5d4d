// How an endpoint begins, waits and receives; how it sends is in endpoint_send.cc.
#include "csrc/transport/rdma/endpoint.h"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace byteps_like::rdma {
namespace {

using verbs::Lib;

uint64_t ReceiveId(uint32_t lane, uint32_t buffer) { return kReceive | (lane << 16) | buffer; }

Code CodeOf(verbs::WcStatus status) {
  switch (status) {
    case verbs::kWcRetryExcErr:
    case verbs::kWcRnrRetryExcErr:
    case verbs::kWcWrFlushErr:
      return Code::kPeerLost;
    default:
      return Code::kSystem;
  }
}

}  // namespace

// Beginning -----------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Endpoint>> Endpoint::Make(std::string peer, uint32_t queue_pairs) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(peer), queue_pairs));
  auto channel = MakeCmChannel();
  if (!channel.ok()) return channel.status();
  endpoint->channel_ = std::move(*channel);
  endpoint->eager_ = Block(kDepth * kEagerBytes);
  if (endpoint->eager_.data() == nullptr) return SystemError("memory for a link to " + endpoint->peer_, ENOMEM);
  return endpoint;
}

Endpoint::~Endpoint() = default;

Result<uint32_t> Endpoint::PortOf(Device* device) {
  for (uint32_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i].device == device) return i;
  }
  const auto lanes = static_cast<int>(lanes_.size());
  auto completions = Completions::Make(*device, (2 * static_cast<int>(kDepth) + 1) * lanes);
  if (!completions.ok()) return completions.status();
  auto eager = device->Register(eager_.data(), eager_.size(), verbs::kLocalWrite);
  if (!eager.ok()) return eager.status();
  ports_.push_back({device, std::move(*completions), std::move(*eager), nullptr, nullptr});
  return static_cast<uint32_t>(ports_.size() - 1);
}

Status Endpoint::Add(CmId id, const Options& options) {
  auto device = Device::Open(id->verbs->device->name);
  if (!device.ok()) return device.status();
  auto port = PortOf(*device);
  if (!port.ok()) return port.status();
  Lane& lane = lanes_[added_];
  lane.port = *port;
  lane.receives = Block(kDepth * kEagerBytes);
  if (lane.receives.data() == nullptr) return SystemError("memory for a link to " + peer_, ENOMEM);
  auto region = (*device)->Register(lane.receives.data(), lane.receives.size(), verbs::kLocalWrite);
  if (!region.ok()) return region.status();
  lane.region = std::move(*region);
  auto pair = QueuePair::Make(std::move(id), **device, *ports_[*port].completions, options, kDepth);
  if (!pair.ok()) return pair.status();
  lane.pair = std::move(*pair);
  for (uint32_t buffer = 0; buffer < kDepth; ++buffer) {
    if (Status posted = PostReceive(added_, buffer); !posted.ok()) return posted;
  }
  ++added_;
  return {};
}

Greeting Endpoint::GreetingOf(uint32_t index) const {
  Greeting greeting;
  greeting.index = static_cast<uint8_t>(index);
  greeting.count = static_cast<uint8_t>(lanes_.size());
  greeting.mtu = lanes_[index].pair->mtu();
  return greeting;
}

Status Endpoint::Connect(uint32_t index, const Greeting& peer) {
  if (!std::has_single_bit(peer.mtu) || peer.mtu < 256 || peer.mtu > 4096) {
    return Status(Code::kCorrupt,
                  peer_ + ": it claims packets of " + std::to_string(peer.mtu) + " bytes, which is no valid MTU");
  }
  return lanes_[index].pair->Connect(peer.mtu);
}

Result<PlaceOffer> Endpoint::Open() {
  slots_ = Block(kSlots * kSlotBytes);
  if (slots_.data() == nullptr) return SystemError("memory for a link to " + peer_, ENOMEM);
  for (Port& port : ports_) {
    auto slots = port.device->Register(slots_.data(), slots_.size(), verbs::kLocalWrite | verbs::kRemoteWrite);
    if (!slots.ok()) return slots.status();
    port.slots = std::move(*slots);
  }
  PlaceOffer told;
  told.address = reinterpret_cast<uint64_t>(slots_.data());
  told.bytes = slots_.size();
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (Status allowed = lanes_[i].pair->AllowWrites(); !allowed.ok()) return allowed;
    told.keys[i] = ports_[lanes_[i].port].slots->rkey;
  }
  return told;
}

void Endpoint::OnOpen(const PlaceOffer& slots) {
  if (peer_slots_ != 0 || slots.address == 0 || slots.bytes != size_t{kSlots} * kSlotBytes) {
    return Break(Code::kCorrupt, "its slots are invalid");
  }
  peer_slots_ = slots.address;
  for (uint32_t i = 0; i < lanes_.size(); ++i) lanes_[i].peer_slots_key = slots.keys[i];
}

std::vector<const Device*> Endpoint::devices() const {
  std::vector<const Device*> devices;
  devices.reserve(ports_.size());
  for (const Port& port : ports_) devices.push_back(port.device);
  return devices;
}

// Waiting -------------------------------------------------------------------------------------------------------------

std::vector<int> Endpoint::fds() const {
  std::vector<int> fds{channel_->fd};
  for (const Port& port : ports_) fds.push_back(port.completions->fd());
  return fds;
}

void Endpoint::TakeEvents() {
  for (const Port& port : ports_) port.completions->TakeEvents();
  while (const CmEvent event = NextCmEvent(channel_)) {
    disconnected_ = disconnected_ || event->event == verbs::kDisconnected || event->event == verbs::kDeviceRemoval;
  }
}

bool Endpoint::Sleep() {
  for (const Port& port : ports_) port.completions->Arm();
  return Poll() == 0;
}

void Endpoint::Await(Deadline until) {
  TakeEvents();
  if (!Sleep()) return;
  std::vector<pollfd> polled;
  for (const int fd : fds()) polled.push_back({fd, POLLIN, 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
}

size_t Endpoint::Poll() {
  constexpr int kAtOnce = 16;
  verbs::Wc done[kAtOnce];
  size_t all = 0;
  for (const Port& port : ports_) {
    for (int count = kAtOnce; count == kAtOnce;) {
      count = port.completions->Poll(done, kAtOnce);
      if (count < 0) Break(Code::kSystem, "ibv_poll_cq failed");
      for (int i = 0; i < count; ++i) OnCompletion(done[i]);
      all += static_cast<size_t>(std::max(count, 0));
    }
  }
  // Everything that the peer sent before it disconnected has completed before the disconnect event.
  if (disconnected_ && failure_.ok()) {
    Break(Code::kPeerLost, "it closed the connection, or died");
    ++all;
  }
  return all;
}

void Endpoint::OnCompletion(const verbs::Wc& done) {
  if (done.status != verbs::kWcSuccess) return OnFailed(done);
  if ((done.wr_id & kReceive) != 0) return OnReceived(done);
  if ((done.wr_id & kProbe) != 0) {
    lanes_[done.wr_id & 0xff].probing = false;
    return;
  }
  OnSent(static_cast<uint32_t>(done.wr_id));
}

void Endpoint::OnFailed(const verbs::Wc& done) {
  Break(CodeOf(done.status), std::string(verbs::NameOf(done.status)) + ": " + verbs::MeaningOf(done.status));
}

void Endpoint::Break(Code code, const std::string& why) {
  if (failure_.ok()) failure_ = Status(code, peer_ + ": " + why);
}

// Receiving -----------------------------------------------------------------------------------------------------------

Status Endpoint::PostReceive(uint32_t lane, uint32_t buffer) {
  Lane& to = lanes_[lane];
  std::byte* const data = to.receives.data() + size_t{buffer} * kEagerBytes + kEagerSkip;
  return to.pair->PostReceive(ReceiveId(lane, buffer), data, kMessageBytes, to.region->lkey);
}

std::byte* Endpoint::BufferOf(const Came& came) const {
  return lanes_[came.lane].receives.data() + size_t{came.buffer} * kEagerBytes + kEagerSkip;
}

void Endpoint::OnReceived(const verbs::Wc& done) {
  const uint32_t number = ntohl(done.imm_data);
  Came& came = came_[number % kDepth];
  const bool eager = done.opcode == verbs::kWcRecv;
  if (number - next_ >= kDepth || came.here || (eager && done.byte_len < sizeof(Envelope))) {
    return Break(Code::kCorrupt,
                 "message " + std::to_string(number) + " is out of sequence after " + std::to_string(next_));
  }
  came.here = true;
  came.eager = eager;
  came.lane = static_cast<uint8_t>((done.wr_id >> 16) & 0xff);
  came.buffer = static_cast<uint8_t>(done.wr_id & 0xff);
  came.bytes = done.byte_len;
  if (eager) Heed(*reinterpret_cast<const Envelope*>(BufferOf(came)));
}

// With several queue pairs, a later envelope may come first.
void Endpoint::Heed(const Envelope& envelope) {
  if (static_cast<int32_t>(envelope.consumed - taken_) > 0) taken_ = envelope.consumed;
  if (static_cast<int32_t>(envelope.freed - slots_freed_) > 0) slots_freed_ = envelope.freed;
  if (sent_ - taken_ > kDepth || slots_used_ - slots_freed_ > kSlots) {
    Break(Code::kCorrupt, "it gives credit for messages that were never sent");
  }
}

const Arrival* Endpoint::Front() {
  const Came& came = came_[next_ % kDepth];
  if (!came.here) return nullptr;
  front_ = {};
  front_.bytes = came.bytes;
  if (came.eager) {
    std::byte* const buffer = BufferOf(came);
    front_.envelope = reinterpret_cast<const Envelope*>(buffer);
    front_.content = buffer + sizeof(Envelope);
    front_.bytes -= sizeof(Envelope);
  }
  return &front_;
}

void Endpoint::Pop() {
  Came& came = came_[next_ % kDepth];
  came.here = false;
  ++next_;
  if (dead_) return;
  if (Status posted = PostReceive(came.lane, came.buffer); !posted.ok()) Break(Code::kSystem, posted.message());
}

}  // namespace byteps_like::rdma
