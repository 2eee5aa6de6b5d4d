#include "csrc/transport/entrance/passage.h"

#include <utility>

#include "csrc/transport/tcp/socket_stream.h"

namespace byteps_like {

Passage::Passage(std::unique_ptr<Stream> visitor, std::unique_ptr<Stream> inside, std::string name, bool zmtp)
    : visitor_(std::move(visitor)),
      inside_(std::move(inside)),
      name_(std::move(name)),
      visitor_name_(visitor_->peer()),
      zmtp_(zmtp) {}

Passage::~Passage() = default;

Result<std::unique_ptr<Passage>> Passage::Begin(std::unique_ptr<Stream> visitor, const std::string& path, bool zmtp) {
  std::string name;
  auto inside = ConnectUnix(path, name);
  if (!inside.ok()) return inside.status();
  return std::unique_ptr<Passage>(new Passage(std::move(visitor), std::move(*inside), std::move(name), zmtp));
}

std::vector<int> Passage::fds() const {
  std::vector<int> both = visitor_->fds();
  for (const int fd : inside_->fds()) both.push_back(fd);
  return both;
}

Status Passage::Pump() {
  for (bool more = true; more;) {
    more = Move(*visitor_, *inside_, inwards_);
    more = Move(*inside_, *visitor_, outwards_) || more;
    if (zmtp_ && outwards_.moved > kMostUnadmitted) Prove();
    for (const Way* way : {&inwards_, &outwards_}) {
      if (!way->over.ok() && way->begin == way->end) return way->over;
    }
  }
  return {};
}

// Whether anything was moved.
bool Passage::Move(Stream& from, Stream& to, Way& way) {
  for (bool moved = false; !way.blocked;) {
    if (way.begin == way.end) {
      auto got = way.over.ok() ? from.Read(way.bytes.data(), way.bytes.size()) : Result<size_t>(size_t{0});
      if (!got.ok()) way.over = got.status();
      if (!got.ok() || *got == 0) return moved;
      way.begin = 0;
      way.end = *got;
    }
    const iovec piece{way.bytes.data() + way.begin, way.end - way.begin};
    auto sent = to.Write(std::span(&piece, 1));
    way.blocked = !sent.ok();  // the way back tells why, after all that has come by it
    if (!sent.ok() || *sent == 0) return moved;
    way.begin += *sent;
    way.moved += *sent;
    moved = true;
  }
  return false;
}

}  // namespace byteps_like
