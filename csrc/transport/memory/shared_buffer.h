// Memory that can be mapped by another process on this host: an anonymous memfd, so nothing is left behind in
// /dev/shm however a process dies. Sealed against shrinking: a peer can't make a mapping fault. Huge pages are asked
// for.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "csrc/base/fd.h"
#include "csrc/base/status.h"
#include "csrc/transport/memory/registered_memory.h"

namespace byteps_like {

class SharedBuffer : public std::enable_shared_from_this<SharedBuffer> {  // so that owners in Python are owners here
 public:
  // Zero-filled, page-aligned. All of it is taken from the kernel at once: kCapacity if there is not so much, where to
  // touch it later would kill the process (a full cgroup, vm.overcommit_memory=2).
  static Result<std::shared_ptr<SharedBuffer>> Create(size_t bytes);
  // Address space: pages are taken when they are first touched. kCapacity names RLIMIT_FSIZE or RLIMIT_AS.
  static Result<std::shared_ptr<SharedBuffer>> CreateSparse(size_t bytes);
  static Result<std::shared_ptr<SharedBuffer>> Map(int fd);  // takes the fd; refuses one without F_SEAL_SHRINK
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  void CloseFile() { fd_.Reset(); }  // it can't be passed on any more; the memory stays

 private:
  SharedBuffer(Fd fd, std::byte* data, size_t size)
      : fd_(std::move(fd)), data_(data), size_(size), registered_(data, size) {}
  Fd fd_;
  std::byte* data_;
  size_t size_;
  RegisteredMemory registered_;
};

}  // namespace byteps_like
