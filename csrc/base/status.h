// Outcome of an operation on the data path. Never thrown, never ignored; the binding turns a failure into the
// exception of the same name in byteps_like/errors.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace byteps_like {

// Values cross the wire (ERROR frames) and the binding: append only, and mirror in byteps_like/errors.py.
enum class Code : uint8_t {
  kOk = 0,
  kInvalid = 1,   // a caller's argument is wrong
  kMismatch = 2,  // ranks disagree on size, dtype, operation or order
  kStalled = 3,   // a contribution did not come before the deadline
  kPeerLost = 4,  // a peer died or can't be reached any more
  kRefused = 5,   // a handshake was refused: secret, job, epoch, version
  kCorrupt = 6,   // bytes on a link failed their checksum or their bounds
  kTimeout = 7,   // a local deadline passed
  kClosed = 8,    // the other side said goodbye, or we did
  kCapacity = 9,  // memory, descriptors, threads or a budget of ours are used up
  kSystem = 10,   // a system call failed
  kDevice = 11,   // a GPU or its driver failed, or there is none
};
inline constexpr uint32_t kCodeCount = 12;

// The code of a failure reported by a peer or another language; kCorrupt if the number is none of the above, or is kOk.
Code CodeFrom(uint32_t number);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// With the text of errno, as in "connect to 10.0.0.1:4000: Connection refused". kCapacity where the kernel has no more
// of something (descriptors, memory), with the limit that was met; kPeerLost where nobody listens; else kSystem.
Status SystemError(const std::string& what, int error_number);

// `why` itself, if it says that something has failed; else kSystem: what ends with it must not look as if it were done.
Status Failure(const Status& why);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace byteps_like
