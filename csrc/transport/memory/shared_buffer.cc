#include "csrc/transport/memory/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
namespace byteps_like {
namespace {

constexpr size_t kHugePage = 2u << 20;
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

struct Limit {
  explicit Limit(decltype(RLIMIT_AS) resource) { ::getrlimit(resource, &limit); }
  std::string Says(const char* name) const {
    return limit.rlim_cur == RLIM_INFINITY ? ""
                                           : std::string(", where ") + name + " is " + std::to_string(limit.rlim_cur);
  }
  rlimit limit{};
};

Result<std::byte*> MapMemory(int fd, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    const std::string what = "map " + std::to_string(bytes) + " bytes of shared memory";
    return SystemError(what + (error == ENOMEM ? Limit(RLIMIT_AS).Says("RLIMIT_AS") : ""), error);
  }
  if (bytes >= kHugePage) ::madvise(data, bytes, MADV_HUGEPAGE);  // only a wish: the kernel may forbid them
  return static_cast<std::byte*>(data);
}

// Through the mapping, so that they may be huge ones; a kernel before 5.14 does it through the file.
Status TakePages(const SharedBuffer& buffer) {
  if (::madvise(buffer.data(), buffer.size(), MADV_POPULATE_WRITE) == 0) return {};
  int error = errno;
  if (error == EINVAL) error = ::posix_fallocate(buffer.fd(), 0, static_cast<off_t>(buffer.size()));
  if (error == 0) return {};
  // EFAULT: touching that page would raise SIGBUS.
  return SystemError("shared memory of " + std::to_string(buffer.size()) + " bytes", error == EFAULT ? ENOMEM : error);
}

}  // namespace

Result<std::shared_ptr<SharedBuffer>> SharedBuffer::Create(size_t bytes) {
  auto buffer = CreateSparse(bytes);
  if (!buffer.ok()) return buffer;
  if (Status taken = TakePages(**buffer); !taken.ok()) return taken;
  return buffer;
}

Result<std::shared_ptr<SharedBuffer>> SharedBuffer::CreateSparse(size_t bytes) {
  if (bytes == 0) return Status(Code::kInvalid, "a shared buffer of 0 bytes");
  // Beyond the limit ftruncate would raise a signal.
  if (const Limit files(RLIMIT_FSIZE); bytes > files.limit.rlim_cur) {
    return SystemError("shared memory of " + std::to_string(bytes) + " bytes" + files.Says("RLIMIT_FSIZE"), EFBIG);
  }
  Fd fd(::memfd_create("byteps_like", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return SystemError("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return SystemError("shared memory of " + std::to_string(bytes) + " bytes", errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("seal shared memory", errno);
  }
  return Map(fd.Release());
}

Result<std::shared_ptr<SharedBuffer>> SharedBuffer::Map(int raw_fd) {
  Fd fd(raw_fd);
  // Without the seal the peer could cut the file off under the mapping, and the next access would be a SIGBUS.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kCorrupt, "a shared buffer that is not sealed against shrinking");
  }
  struct stat about{};
  if (::fstat(fd.get(), &about) != 0) return SystemError("size of a shared buffer", errno);
  if (about.st_size <= 0) return Status(Code::kCorrupt, "a shared buffer of 0 bytes");
  const auto bytes = static_cast<size_t>(about.st_size);
  auto data = MapMemory(fd.get(), bytes);
  if (!data.ok()) return data.status();
  return std::shared_ptr<SharedBuffer>(new SharedBuffer(std::move(fd), *data, bytes));
}

SharedBuffer::~SharedBuffer() {
  registered_ = {};  // before it is unmapped
  ::munmap(data_, size_);
}

}  // namespace byteps_like
