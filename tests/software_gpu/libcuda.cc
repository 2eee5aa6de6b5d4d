// A stand-in for libcuda.so.1 on machines without a device: the functions of csrc/gpu/cuda_abi.h over device.h, and
// controls of its own (software_gpu_*) for tests. Device memory is the host's, in two devices; kernels are those of
// csrc/cuda as host functions. It notes misuse: memory used while a copy on another stream is under way, or freed while
// in use, streams and memory of another device, calls from host functions. Test-only.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "tests/software_gpu/device.h"
#include "tests/software_gpu/launch.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
// Begins every function: what a device that is lost, a test or a host function makes of the call.
#define ENTER(name)                                              \
  Software& software = Software::Get();                          \
  std::unique_lock lock(software.mutex);                         \
  if (const Outcome wrong = Enter(software, name)) return wrong; \
  software.changed.wait(lock, [&] { return software.held != (name); })

using namespace software_gpu;  // NOLINT: the library is nothing else

namespace {

constexpr int kDevices = 2;
constexpr size_t kDeviceBytes = size_t{1} << 34;
constexpr int32_t kSharedUnasked = 48 * 1024, kSharedAsked = 227 * 1024;  // bytes of a block: those of an H100
constexpr Outcome kNotPermitted = 800, kCaptureUnsupported = 900;

// Not while a graph is captured anywhere, by a thread that has not said that it knows (CU_STREAM_CAPTURE_MODE_RELAXED):
// the call fails, and the capture with it.
bool IsUnsafe(std::string_view name) {
  static const std::set<std::string_view> unsafe = {
      "cuEventQuery",         "cuEventSynchronize",  "cuStreamQuery", "cuStreamSynchronize", "cuMemAlloc_v2",
      "cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemFree_v2",  "cuModuleLoad",        "cuModuleUnload"};
  return unsafe.contains(name);
}

Outcome Enter(Software& software, const char* name) {
  if (in_host_function) {
    software.Misuse(std::string(name) + " from a host function");
    return kNotPermitted;
  }
  if (software.capturing && capture_mode != kCaptureRelaxed && IsUnsafe(name)) {
    software.Misuse(std::string(name) + " while a graph is captured");
    return kCaptureUnsupported;
  }
  if (software.lost) return kLaunchFailed;
  const auto found = software.failures.find(name);
  if (found == software.failures.end() || --found->second.first != 0) return kSuccess;
  const int error = found->second.second;
  software.failures.erase(found);
  return error;
}

struct IpcContent {
  int32_t pid, fd, device;
  uint64_t bytes;
};

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
template <typename T = void>
T* At(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

Outcome Map(Software& software, int fd, size_t bytes, int device, bool own, uint64_t* address) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return kOutOfMemory;
  software.memory[AddressOf(data)] = {device, bytes, fd, own};
  *address = AddressOf(data);
  return kSuccess;
}

Outcome Unmap(Software& software, std::unique_lock<std::mutex>& lock, const char* call, uint64_t address, bool own) {
  const auto found = software.memory.find(address);
  if (found == software.memory.end() || found->second.own != own || found->second.adopted) return kInvalidValue;
  software.AwaitUnused(lock, call, address, found->second.bytes);
  ::munmap(At(address), found->second.bytes);
  ::close(found->second.fd);
  software.memory.erase(found);
  return kSuccess;
}

// What of a device a copy uses must be that device's.
bool IsOn(Software& software, const std::string& call, uint64_t address, size_t bytes, int device) {
  const Allocation* const found = software.Find(address, bytes);
  if (found != nullptr && (found->device == device || found->adopted)) return true;
  software.Misuse(call + (found == nullptr ? " of what is no device memory" : " of another device's memory"));
  return false;
}

Outcome AddCopy(Software& software, const char* call, uint64_t to, uint64_t from, size_t bytes, Stream stream,
                bool to_host, bool from_host) {
  const auto queue = software.QueueOf(stream);
  if (!queue) return kInvalidHandle;
  if (!to_host && !IsOn(software, call, to, bytes, queue->device())) return kInvalidValue;
  if (!from_host && !IsOn(software, call, from, bytes, queue->device())) return kInvalidValue;
  for (const auto& [host, address] : {std::pair{to_host, to}, std::pair{from_host, from}})
    if (host && !software.IsPinned(address, bytes)) software.Misuse(std::string(call) + ": memory is not page-locked");
  // Who reads too early reads this; not where something earlier on the stream uses it.
  if (to_host && software.UserOf({to, to + bytes, true}).empty()) std::memset(At(to), 0xA5, bytes);
  queue->Add({.what = call,
              .ranges = {{to, to + bytes, true}, {from, from + bytes, false}},
              .pointers = {},
              .ready = {},
              .run =
                  [to, from, bytes] {
                    std::memcpy(At(to), At(from), bytes);
                    return std::string();
                  },
              .copies = true});
  return kSuccess;
}

}  // namespace

// The driver and its devices ------------------------------------------------------------------------------------------

EXPORT Outcome cuInit(uint32_t) {
  ENTER("cuInit");
  return kSuccess;
}
EXPORT Outcome cuDriverGetVersion(int32_t* version) {
  ENTER("cuDriverGetVersion");
  *version = 13000;
  return kSuccess;
}
EXPORT Outcome cuGetErrorName(Outcome outcome, const char** name) {
  static const std::map<Outcome, const char*> kNames = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                        {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                        {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
                                                        {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                                                        {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                                                        {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                                        {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"}};
  const auto found = kNames.find(outcome);
  *name = found == kNames.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
  return kSuccess;
}
EXPORT Outcome cuGetErrorString(Outcome outcome, const char** text) {
  *text = outcome == kOutOfMemory ? "out of memory" : "in software";
  return kSuccess;
}
EXPORT Outcome cuDeviceGetCount(int32_t* count) {
  ENTER("cuDeviceGetCount");
  *count = kDevices;
  return kSuccess;
}
EXPORT Outcome cuDeviceGet(Device* device, int32_t ordinal) {
  ENTER("cuDeviceGet");
  *device = ordinal;
  return ordinal >= 0 && ordinal < kDevices ? kSuccess : kInvalidDevice;
}
EXPORT Outcome cuDeviceGetName(char* name, int32_t bytes, Device) {
  ENTER("cuDeviceGetName");
  std::strncpy(name, "software GPU", static_cast<size_t>(bytes));
  return kSuccess;
}
EXPORT Outcome cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  ENTER("cuDeviceGetUuid_v2");
  std::memset(uuid->bytes, 0x10 + device, sizeof uuid->bytes);
  return kSuccess;
}
EXPORT Outcome cuDeviceTotalMem_v2(size_t* bytes, Device) {
  ENTER("cuDeviceTotalMem_v2");
  *bytes = kDeviceBytes;
  return kSuccess;
}
EXPORT Outcome cuDeviceGetAttribute(int32_t* value, int32_t attribute, Device device) {
  ENTER("cuDeviceGetAttribute");
  *value = attribute == kPciBus ? 0x17 + device : attribute == kMostShared ? kSharedAsked : 0;
  return kSuccess;
}
EXPORT Outcome cuDevicePrimaryCtxRetain(Context* context, Device device) {
  ENTER("cuDevicePrimaryCtxRetain");
  ++software.retained[device];
  *context = At<ContextObject>(static_cast<uint64_t>(device) + 1);
  return kSuccess;
}
EXPORT Outcome cuDevicePrimaryCtxRelease_v2(Device device) {
  ENTER("cuDevicePrimaryCtxRelease_v2");
  --software.retained[device];
  return kSuccess;
}
EXPORT Outcome cuCtxPushCurrent_v2(Context context) {
  ENTER("cuCtxPushCurrent_v2");
  contexts.push_back(static_cast<int>(AddressOf(context)) - 1);
  return kSuccess;
}
EXPORT Outcome cuCtxPopCurrent_v2(Context* context) {
  if (contexts.empty()) return kInvalidContext;
  *context = At<ContextObject>(static_cast<uint64_t>(contexts.back()) + 1);
  contexts.pop_back();
  return kSuccess;
}
EXPORT Outcome cuCtxGetStreamPriorityRange(int32_t* least, int32_t* most) {
  ENTER("cuCtxGetStreamPriorityRange");
  *least = 0;
  *most = -5;
  return kSuccess;
}

// Memory --------------------------------------------------------------------------------------------------------------

EXPORT Outcome cuMemGetInfo_v2(size_t* free, size_t* all) {
  ENTER("cuMemGetInfo_v2");
  size_t used = 0;
  for (const auto& [address, one] : software.memory) used += one.own ? one.bytes : 0;
  *all = kDeviceBytes;
  *free = kDeviceBytes - used;
  return kSuccess;
}
EXPORT Outcome cuMemAlloc_v2(DeviceAddress* address, size_t bytes) {
  ENTER("cuMemAlloc_v2");
  software.Quiesce("cuMemAlloc");
  if (contexts.empty()) return kInvalidContext;
  const int fd = ::memfd_create("software_gpu", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  const Outcome outcome = Map(software, fd, bytes, contexts.back(), true, address);
  if (outcome == kSuccess) std::memset(At(*address), 0xC3, bytes);
  return outcome;
}
EXPORT Outcome cuMemFree_v2(DeviceAddress address) {
  ENTER("cuMemFree_v2");
  software.Quiesce("cuMemFree");
  if (contexts.empty()) return kInvalidContext;
  return Unmap(software, lock, "cuMemFree", address, true);
}
EXPORT Outcome cuMemGetAddressRange_v2(DeviceAddress* base, size_t* bytes, DeviceAddress address) {
  ENTER("cuMemGetAddressRange_v2");
  for (const auto& [begin, one] : software.memory)
    if (address >= begin && address < begin + one.bytes) {
      *base = begin;
      *bytes = one.bytes;
      return kSuccess;
    }
  return kNotFound;
}
// A copy of the range: nothing here maps it beside a GPU.
EXPORT Outcome cuMemGetHandleForAddressRange(void* handle, DeviceAddress address, size_t bytes, int32_t type,
                                             uint64_t flags) {
  ENTER("cuMemGetHandleForAddressRange");
  const Allocation* const found = software.Find(address, bytes);
  if (found == nullptr || type != kRangeDmaBuf || flags != 0 || (address | bytes) % 4096 != 0) return kInvalidValue;
  const int fd = ::memfd_create("software_gpu_dma_buf", MFD_CLOEXEC);
  if (fd < 0 || ::pwrite(fd, At(address), bytes, 0) != static_cast<ssize_t>(bytes)) return kOutOfMemory;
  std::memcpy(handle, &fd, sizeof fd);
  return kSuccess;
}
EXPORT Outcome cuMemHostRegister_v2(void* data, size_t bytes, uint32_t) {
  ENTER("cuMemHostRegister_v2");
  software.Quiesce("cuMemHostRegister");
  if (contexts.empty()) return kInvalidContext;
  if (software.IsPinned(AddressOf(data), 1)) return kAlreadyRegistered;
  software.pinned[AddressOf(data)] = bytes;
  return kSuccess;
}
EXPORT Outcome cuMemHostUnregister(void* data) {
  ENTER("cuMemHostUnregister");
  software.Quiesce("cuMemHostUnregister");
  if (contexts.empty()) return kInvalidContext;
  const auto found = software.pinned.find(AddressOf(data));
  if (found == software.pinned.end()) return kNotRegistered;
  software.AwaitUnused(lock, "cuMemHostUnregister", found->first, found->second);
  software.pinned.erase(found);
  return kSuccess;
}
EXPORT Outcome cuMemHostGetDevicePointer_v2(DeviceAddress* address, void* data, uint32_t) {
  ENTER("cuMemHostGetDevicePointer_v2");
  if (!software.IsPinned(AddressOf(data), 1)) return kInvalidValue;
  *address = AddressOf(data);
  return kSuccess;
}
EXPORT Outcome cuPointerGetAttribute(void* value, int32_t attribute, DeviceAddress address) {
  ENTER("cuPointerGetAttribute");
  if (contexts.empty()) return kInvalidContext;
  const Allocation* const found = software.Find(address, 1);
  if (found == nullptr || attribute != kPointerDevice) return kInvalidValue;
  std::memcpy(value, &found->device, sizeof found->device);
  return kSuccess;
}
EXPORT Outcome cuMemcpyDtoHAsync_v2(void* to, DeviceAddress from, size_t bytes, Stream stream) {
  ENTER("cuMemcpyDtoHAsync_v2");
  if (contexts.empty()) return kInvalidContext;
  return AddCopy(software, "cuMemcpyDtoHAsync", AddressOf(to), from, bytes, stream, true, false);
}
EXPORT Outcome cuMemcpyHtoDAsync_v2(DeviceAddress to, const void* from, size_t bytes, Stream stream) {
  ENTER("cuMemcpyHtoDAsync_v2");
  if (contexts.empty()) return kInvalidContext;
  return AddCopy(software, "cuMemcpyHtoDAsync", to, AddressOf(from), bytes, stream, false, true);
}
EXPORT Outcome cuMemcpyAsync(DeviceAddress to, DeviceAddress from, size_t bytes, Stream stream) {
  ENTER("cuMemcpyAsync");
  return AddCopy(software, "cuMemcpyAsync", to, from, bytes, stream, software.IsPinned(to, bytes),
                 software.IsPinned(from, bytes));
}
EXPORT Outcome cuMemsetD8Async(DeviceAddress to, unsigned char value, size_t bytes, Stream stream) {
  ENTER("cuMemsetD8Async");
  if (contexts.empty()) return kInvalidContext;
  const auto queue = software.QueueOf(stream);
  if (!queue) return kInvalidHandle;
  if (!IsOn(software, "cuMemsetD8Async", to, bytes, queue->device())) return kInvalidValue;
  queue->Add({.what = "cuMemsetD8Async",
              .ranges = {{to, to + bytes, true}},
              .pointers = {},
              .ready = {},
              .run = [to, value, bytes] {
                std::memset(At(to), value, bytes);
                return std::string();
              }});
  return kSuccess;
}
EXPORT Outcome cuIpcGetMemHandle(IpcHandle* handle, DeviceAddress address) {
  ENTER("cuIpcGetMemHandle");
  const auto found = software.memory.find(address);
  if (found == software.memory.end() || !found->second.own) return kInvalidValue;
  const IpcContent content{::getpid(), found->second.fd, found->second.device, found->second.bytes};
  std::memcpy(handle, &content, sizeof content);
  return kSuccess;
}
EXPORT Outcome cuIpcOpenMemHandle_v2(DeviceAddress* address, IpcHandle handle, uint32_t) {
  ENTER("cuIpcOpenMemHandle_v2");
  if (contexts.empty()) return kInvalidContext;
  IpcContent content;
  std::memcpy(&content, &handle, sizeof content);
  const std::string path = "/proc/" + std::to_string(content.pid) + "/fd/" + std::to_string(content.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidHandle;
  // Of this process's device from here on: through the mapping it reads what another device holds, too.
  return Map(software, fd, content.bytes, contexts.back(), false, address);
}
EXPORT Outcome cuIpcCloseMemHandle(DeviceAddress address) {
  ENTER("cuIpcCloseMemHandle");
  software.Quiesce("cuIpcCloseMemHandle");
  return Unmap(software, lock, "cuIpcCloseMemHandle", address, false);
}

// Streams and events --------------------------------------------------------------------------------------------------

EXPORT Outcome cuStreamCreateWithPriority(Stream* stream, uint32_t, int32_t) {
  ENTER("cuStreamCreateWithPriority");
  if (contexts.empty()) return kInvalidContext;
  const auto queue = std::make_shared<Queue>(software, contexts.back());
  *stream = At<StreamObject>(AddressOf(queue.get()));
  software.streams[*stream] = queue;
  return kSuccess;
}
EXPORT Outcome cuStreamDestroy_v2(Stream stream) {
  std::shared_ptr<Queue> ending;  // joins its thread, after the lock
  ENTER("cuStreamDestroy_v2");
  const auto found = software.streams.find(stream);
  if (found == software.streams.end()) return kInvalidHandle;
  ending = std::move(found->second);
  software.streams.erase(found);
  lock.unlock();
  return kSuccess;
}
EXPORT Outcome cuStreamQuery(Stream stream) {
  ENTER("cuStreamQuery");
  if (contexts.empty()) return kInvalidContext;
  const auto queue = software.QueueOf(stream);
  if (!queue) return kInvalidHandle;
  return queue->Idle() ? kSuccess : kNotReady;
}
EXPORT Outcome cuStreamSynchronize(Stream stream) {
  ENTER("cuStreamSynchronize");
  if (contexts.empty()) return kInvalidContext;
  const auto queue = software.QueueOf(stream);
  if (!queue) return kInvalidHandle;
  software.changed.wait(lock, [&] { return queue->Idle() || software.lost; });
  return software.lost ? kLaunchFailed : kSuccess;
}
EXPORT Outcome cuThreadExchangeStreamCaptureMode(int32_t* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
EXPORT Outcome cuStreamIsCapturing(Stream, int32_t* status) {
  *status = 0;
  ENTER("cuStreamIsCapturing");
  return kSuccess;
}
EXPORT Outcome cuEventCreate(Event* event, uint32_t) {
  ENTER("cuEventCreate");
  if (contexts.empty()) return kInvalidContext;
  auto mark = std::make_unique<Mark>();
  mark->device = contexts.back();
  *event = At<EventObject>(AddressOf(mark.get()));
  software.events[*event] = std::move(mark);
  return kSuccess;
}
EXPORT Outcome cuEventDestroy_v2(Event event) {
  ENTER("cuEventDestroy_v2");
  return software.events.erase(event) == 1 ? kSuccess : kInvalidHandle;
}
EXPORT Outcome cuEventRecord(Event event, Stream stream) {
  ENTER("cuEventRecord");
  if (contexts.empty()) return kInvalidContext;
  const auto found = software.events.find(event);
  const auto queue = software.QueueOf(stream);
  if (found == software.events.end() || !queue) return kInvalidHandle;
  if (found->second->device != queue->device()) {
    software.Misuse("cuEventRecord of an event on another device's stream");
    return kInvalidHandle;
  }
  found->second->done = queue->done();
  found->second->number = queue->Add({.what = "cuEventRecord"});
  found->second->clock = queue->clock();
  return kSuccess;
}
EXPORT Outcome cuEventQuery(Event event) {
  ENTER("cuEventQuery");
  if (contexts.empty()) return kInvalidContext;
  const auto found = software.events.find(event);
  if (found == software.events.end()) return kInvalidHandle;
  return found->second->Done() ? kSuccess : kNotReady;
}
EXPORT Outcome cuEventSynchronize(Event event) {
  ENTER("cuEventSynchronize");
  if (contexts.empty()) return kInvalidContext;
  const auto found = software.events.find(event);
  if (found == software.events.end()) return kInvalidHandle;
  const Mark mark = *found->second;
  software.changed.wait(lock, [&] { return mark.Done() || software.lost; });
  return software.lost ? kLaunchFailed : kSuccess;
}
EXPORT Outcome cuStreamWaitEvent(Stream stream, Event event, uint32_t) {
  ENTER("cuStreamWaitEvent");
  if (contexts.empty()) return kInvalidContext;
  const auto found = software.events.find(event);
  const auto queue = software.QueueOf(stream);
  if (found == software.events.end() || !queue) return kInvalidHandle;
  const Mark mark = *found->second;
  queue->Add({.what = "cuStreamWaitEvent", .ranges = {}, .pointers = {}, .ready = [mark] { return mark.Done(); }});
  for (const auto& [other, number] : mark.clock) {
    uint64_t& known = queue->clock()[other];
    known = std::max(known, number);
  }
  return kSuccess;
}
EXPORT Outcome cuStreamWaitValue32_v2(Stream stream, DeviceAddress address, uint32_t value, uint32_t) {
  ENTER("cuStreamWaitValue32_v2");
  if (!software.waits) return kNotSupported;
  const auto queue = software.QueueOf(stream);
  if (!queue) return kInvalidHandle;
  software.AwaitRoom(lock, *queue);
  if (!software.IsPinned(address, 4)) return kInvalidValue;
  auto* const word = At<uint32_t>(address);
  queue->Add({.what = "cuStreamWaitValue32",
              .ranges = {},
              .pointers = {},
              .ready =
                  [word, value] {
                    const uint32_t now = std::atomic_ref<uint32_t>(*word).load(std::memory_order_acquire);
                    return static_cast<int32_t>(now - value) >= 0;
                  },
              .run = {},
              .copies = false,
              .for_word = true});
  return kSuccess;
}
EXPORT Outcome cuStreamWriteValue32_v2(Stream stream, DeviceAddress address, uint32_t value, uint32_t) {
  ENTER("cuStreamWriteValue32_v2");
  if (!software.waits) return kNotSupported;
  const auto queue = software.QueueOf(stream);
  if (!queue) return kInvalidHandle;
  software.AwaitRoom(lock, *queue);
  if (!software.IsPinned(address, 4)) return kInvalidValue;
  auto* const word = At<uint32_t>(address);
  queue->Add({.what = "cuStreamWriteValue32", .ranges = {}, .pointers = {}, .ready = {}, .run = [word, value] {
                std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
                return std::string();
              }});
  return kSuccess;
}
EXPORT Outcome cuLaunchHostFunc(Stream stream, HostFunction function, void* argument) {
  ENTER("cuLaunchHostFunc");
  if (contexts.empty()) return kInvalidContext;
  const auto queue = software.QueueOf(stream);
  if (!queue) return kInvalidHandle;
  queue->Add({.what = "cuLaunchHostFunc", .ranges = {}, .pointers = {}, .ready = {}, .run = [function, argument] {
                in_host_function = true;
                function(argument);
                in_host_function = false;
                return std::string();
              }});
  return kSuccess;
}

// Kernels -------------------------------------------------------------------------------------------------------------

EXPORT Outcome cuModuleLoad(Module* module, const char*) {
  ENTER("cuModuleLoad");
  software.Quiesce("cuModuleLoad");
  *module = At<ModuleObject>(1);
  return kSuccess;
}
EXPORT Outcome cuModuleUnload(Module) {
  ENTER("cuModuleUnload");
  software.Quiesce("cuModuleUnload");
  return kSuccess;
}
EXPORT Outcome cuModuleGetFunction(Function* function, Module, const char* name) {
  ENTER("cuModuleGetFunction");
  *function = At<FunctionObject>(AddressOf(Find(name)));
  return *function == nullptr ? kNotFound : kSuccess;
}
EXPORT Outcome cuFuncSetAttribute(Function function, int32_t attribute, int32_t value) {
  ENTER("cuFuncSetAttribute");
  if (function == nullptr) return kInvalidHandle;
  if (attribute != kFunctionShared || value < 0 || value > kSharedAsked) return kInvalidValue;
  software.most_shared[function] = static_cast<uint32_t>(value);
  return kSuccess;
}
EXPORT Outcome cuLaunchKernel(Function function, uint32_t blocks, uint32_t, uint32_t, uint32_t threads, uint32_t,
                              uint32_t, uint32_t shared, Stream stream, void** arguments, void**) {
  ENTER("cuLaunchKernel");
  if (contexts.empty()) return kInvalidContext;
  const auto queue = software.QueueOf(stream);
  const Kernel* const kernel = reinterpret_cast<const Kernel*>(function);
  if (!queue || kernel == nullptr) return kInvalidHandle;
  const auto asked = software.most_shared.find(function);
  if (shared > (asked == software.most_shared.end() ? uint32_t{kSharedUnasked} : asked->second)) return kInvalidValue;
  Task task{.what = "kernel " + std::string(kernel->name)};
  std::vector<std::vector<std::byte>> values;
  for (size_t i = 0; i < kernel->argument_bytes.size(); ++i) {
    const auto* const from = static_cast<const std::byte*>(arguments[i]);
    values.emplace_back(from, from + kernel->argument_bytes[i]);
    uint64_t word = 0;
    if (kernel->argument_bytes[i] != sizeof word) continue;
    std::memcpy(&word, from, sizeof word);
    if (software.Find(word, 1) != nullptr) task.pointers.push_back(word);
  }
  const Shape shape{blocks, threads, shared};
  task.run = [kernel, shape, values = std::move(values)]() mutable {
    std::vector<void*> pointers;
    for (auto& value : values) pointers.push_back(value.data());
    return Launch(*kernel, shape, pointers.data());
  };
  queue->Add(std::move(task));
  return kSuccess;
}
