// A link of the portable door: raw frames between Python and a shard in this process. Whoever speaks through it has
// proved to the door who it is; the frames are checked by the shard like anyone's.
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"
#include "byteps_like/_native/incarnation.h"
#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/stream.h"
#include "csrc/wire/frame.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

constexpr auto kConnectTimeout = std::chrono::seconds(5);
constexpr size_t kReadBlock = 256u << 10;

class InprocLink {
 public:
  // Looks for bytes at once: a stream rings only after it was found empty.
  explicit InprocLink(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {
    const Status ignored = Fill();  // `recv` meets it again
    (void)ignored;
  }

  int fd() const { return stream_->fds().front(); }  // the doorbell

  // Queues a frame and writes what the ring takes; returns the bytes that still wait for room.
  size_t Send(nb::handle header, nb::handle payload) {
    Append(header);
    Append(payload);
    return Flush();
  }

  size_t Flush() {
    while (out_begin_ < out_.size()) {
      const iovec piece{out_.data() + out_begin_, out_.size() - out_begin_};
      auto written = stream_->Write(std::span(&piece, 1));
      ThrowIfFailed(written.status());
      if (*written == 0) return out_.size() - out_begin_;
      out_begin_ += *written;
    }
    out_.clear();
    out_begin_ = 0;
    return 0;
  }

  // All whole frames that have come, as (header, payload) pairs.
  nb::list Receive() {
    ClearDoorbells();
    const Status state = Fill();
    if (state.ok()) Flush();
    nb::list frames = TakeFrames();
    if (frames.size() == 0) ThrowIfFailed(state);  // what came whole before the end is told first
    return frames;
  }

  void Close() { stream_->Shutdown(); }

 private:
  // Reads until the stream is empty (which arms its doorbell) or has ended.
  Status Fill() {
    for (;;) {
      const size_t have = in_.size();
      in_.resize(have + kReadBlock);
      auto read = stream_->Read(reinterpret_cast<std::byte*>(in_.data() + have), kReadBlock);
      in_.resize(have + (read.ok() ? *read : 0));
      if (!read.ok()) return read.status();
      if (*read == 0) return {};
    }
  }

  void Append(nb::handle bytes) {
    Py_buffer view;
    if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_CONTIG_RO) != 0) throw nb::python_error();
    const auto* data = static_cast<const char*>(view.buf);
    out_.insert(out_.end(), data, data + view.len);
    PyBuffer_Release(&view);
  }

  // The caller polls by level, the ring rings by edge: what was rung is forgotten before looking.
  void ClearDoorbells() {
    uint64_t count = 0;
    for (const int fd : stream_->fds()) [[maybe_unused]]
      const ssize_t ignored = ::read(fd, &count, sizeof count);
  }

  nb::list TakeFrames() {
    nb::list frames;
    size_t begin = 0;
    while (in_.size() - begin >= kHeaderBytes) {
      const auto* bytes = reinterpret_cast<const std::byte*>(in_.data() + begin);
      auto header = DecodeHeader(std::span<const std::byte, kHeaderBytes>(bytes, kHeaderBytes));
      ThrowIfFailed(header.status());
      const size_t size = kHeaderBytes + header->length;
      if (in_.size() - begin < size) break;
      frames.append(nb::make_tuple(nb::bytes(in_.data() + begin, kHeaderBytes),
                                   nb::bytes(in_.data() + begin + kHeaderBytes, header->length)));
      begin += size;
    }
    in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(begin));
    return frames;
  }

  std::unique_ptr<Stream> stream_;
  std::vector<char> in_, out_;
  size_t out_begin_ = 0;
};

InprocLink* Open(const std::string& url, const std::string& job, nb::bytes secret, nb::bytes incarnation,
                 uint32_t epoch, uint32_t member, uint32_t server, uint32_t shard) {
  const Credentials credentials{job, std::string(secret.c_str(), secret.size()), epoch, IncarnationOf(incarnation)};
  const Introduction who{{Role::kWorker, member}, {Role::kServer, server}, shard};
  const Deadline deadline = Clock::now() + kConnectTimeout;
  Status status;
  std::unique_ptr<Stream> stream;
  {
    nb::gil_scoped_release release;
    auto connected = Connect(url, deadline);
    status = connected.status();
    if (status.ok()) status = Meet(**connected, credentials, who, deadline).status;
    if (status.ok()) stream = std::move(*connected);
  }
  ThrowIfFailed(status);
  return new InprocLink(std::move(stream));
}

}  // namespace

void BindInprocLink(nb::module_& m) {
  nb::class_<InprocLink>(m, "InprocLink", "A link to a shard in this process that carries ready-made frames.")
      .def(nb::new_(&Open), nb::arg("url"), nb::arg("job"), nb::arg("secret"), nb::arg("incarnation"), nb::arg("epoch"),
           nb::arg("member"), nb::arg("server"), nb::arg("shard"))
      .def("fileno", &InprocLink::fd, "Readable when `recv` has something to give, to send or to raise.")
      .def("send", &InprocLink::Send, nb::arg("header"), nb::arg("payload"),
           "Takes any buffers along; returns the bytes that still wait for room (recv goes on with them).")
      .def("recv", &InprocLink::Receive, "Whole frames: a list of (header, payload).")
      .def("close", &InprocLink::Close);
}

}  // namespace byteps_like
