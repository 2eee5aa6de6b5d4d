// Our own declarations of the parts of CUDA's driver interface that we use, so a build needs no CUDA. Values are those
// of cuda.h, which never change for a symbol of a given name and version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps_like::cuda {

using Outcome = int32_t;         // CUresult
using Device = int32_t;          // CUdevice: an ordinal
using DeviceAddress = uint64_t;  // CUdeviceptr
struct ContextObject;
struct StreamObject;
struct EventObject;
struct ModuleObject;
struct FunctionObject;
using Context = ContextObject*;    // CUcontext
using Stream = StreamObject*;      // CUstream; nullptr: the legacy default stream
using Event = EventObject*;        // CUevent
using Module = ModuleObject*;      // CUmodule
using Function = FunctionObject*;  // CUfunction
using HostFunction = void (*)(void*);

struct IpcHandle {  // CUipcMemHandle
  std::byte bytes[64];
};
struct Uuid {
  unsigned char bytes[16];
};

inline constexpr Outcome kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100,
                         kInvalidDevice = 101, kInvalidImage = 200, kInvalidContext = 201, kFileNotFound = 301,
                         kInvalidHandle = 400, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700,
                         kAlreadyRegistered = 712, kNotRegistered = 713, kLaunchFailed = 719, kNotSupported = 801,
                         kCaptureImplicit = 906;

inline constexpr uint32_t kStreamNonBlocking = 1;
inline constexpr int32_t kCaptureRelaxed = 2;  // of cuThreadExchangeStreamCaptureMode
inline constexpr uint32_t kEventDisableTiming = 2;
inline constexpr uint32_t kHostPortable = 1, kHostDeviceMap = 2;  // of cuMemHostRegister and cuMemHostAlloc
inline constexpr uint32_t kWaitGreaterEqual = 0;                  // cyclic: int32_t(*address - value) >= 0
inline constexpr uint32_t kLazyPeerAccess = 1;
inline constexpr int32_t kPciBus = 33, kPciDevice = 34, kPciDomain = 50;  // CUdevice_attribute
inline constexpr int32_t kMostShared = 97;                                // CUdevice_attribute: of a block that asks
inline constexpr int32_t kFunctionShared = 8;                             // CUfunction_attribute: dynamic, at most
inline constexpr int32_t kRangeDmaBuf = 1;                                // CUmemRangeHandleType: a file descriptor
inline constexpr int32_t kPointerDevice = 9;                              // CUpointer_attribute: its ordinal

// F(member, symbol, types of its arguments). All return a CUresult.
#define BYTEPS_LIKE_CUDA_FUNCTIONS(F)                                                                               \
  F(Init, "cuInit", uint32_t)                                                                                       \
  F(DriverGetVersion, "cuDriverGetVersion", int32_t*)                                                               \
  F(GetErrorName, "cuGetErrorName", Outcome, const char**)                                                          \
  F(GetErrorString, "cuGetErrorString", Outcome, const char**)                                                      \
  F(DeviceGetCount, "cuDeviceGetCount", int32_t*)                                                                   \
  F(DeviceGet, "cuDeviceGet", Device*, int32_t)                                                                     \
  F(DeviceGetName, "cuDeviceGetName", char*, int32_t, Device)                                                       \
  F(DeviceGetUuid, "cuDeviceGetUuid_v2", Uuid*, Device)                                                             \
  F(DeviceTotalMem, "cuDeviceTotalMem_v2", size_t*, Device)                                                         \
  F(DeviceGetAttribute, "cuDeviceGetAttribute", int32_t*, int32_t, Device)                                          \
  F(PrimaryContextRetain, "cuDevicePrimaryCtxRetain", Context*, Device)                                             \
  F(PrimaryContextRelease, "cuDevicePrimaryCtxRelease_v2", Device)                                                  \
  F(ContextPush, "cuCtxPushCurrent_v2", Context)                                                                    \
  F(ContextPop, "cuCtxPopCurrent_v2", Context*)                                                                     \
  F(ContextStreamPriorities, "cuCtxGetStreamPriorityRange", int32_t*, int32_t*)                                     \
  F(MemGetInfo, "cuMemGetInfo_v2", size_t*, size_t*)                                                                \
  F(MemAlloc, "cuMemAlloc_v2", DeviceAddress*, size_t)                                                              \
  F(MemFree, "cuMemFree_v2", DeviceAddress)                                                                         \
  F(MemGetAddressRange, "cuMemGetAddressRange_v2", DeviceAddress*, size_t*, DeviceAddress)                          \
  F(MemHostRegister, "cuMemHostRegister_v2", void*, size_t, uint32_t)                                               \
  F(MemHostUnregister, "cuMemHostUnregister", void*)                                                                \
  F(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", DeviceAddress*, void*, uint32_t)                       \
  F(PointerGetAttribute, "cuPointerGetAttribute", void*, int32_t, DeviceAddress)                                    \
  F(MemcpyDown, "cuMemcpyDtoHAsync_v2", void*, DeviceAddress, size_t, Stream)                                       \
  F(MemcpyUp, "cuMemcpyHtoDAsync_v2", DeviceAddress, const void*, size_t, Stream)                                   \
  F(Memcpy, "cuMemcpyAsync", DeviceAddress, DeviceAddress, size_t, Stream)                                          \
  F(MemsetBytes, "cuMemsetD8Async", DeviceAddress, unsigned char, size_t, Stream)                                   \
  F(StreamCreate, "cuStreamCreateWithPriority", Stream*, uint32_t, int32_t)                                         \
  F(StreamDestroy, "cuStreamDestroy_v2", Stream)                                                                    \
  F(StreamQuery, "cuStreamQuery", Stream)                                                                           \
  F(StreamSynchronize, "cuStreamSynchronize", Stream)                                                               \
  F(StreamWaitEvent, "cuStreamWaitEvent", Stream, Event, uint32_t)                                                  \
  F(ThreadExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", int32_t*)                                       \
  F(StreamIsCapturing, "cuStreamIsCapturing", Stream, int32_t*)                                                     \
  F(EventCreate, "cuEventCreate", Event*, uint32_t)                                                                 \
  F(EventDestroy, "cuEventDestroy_v2", Event)                                                                       \
  F(EventRecord, "cuEventRecord", Event, Stream)                                                                    \
  F(EventQuery, "cuEventQuery", Event)                                                                              \
  F(EventSynchronize, "cuEventSynchronize", Event)                                                                  \
  F(LaunchHostFunction, "cuLaunchHostFunc", Stream, HostFunction, void*)                                            \
  F(ModuleLoad, "cuModuleLoad", Module*, const char*)                                                               \
  F(ModuleUnload, "cuModuleUnload", Module)                                                                         \
  F(ModuleGetFunction, "cuModuleGetFunction", Function*, Module, const char*)                                       \
  F(FunctionSetAttribute, "cuFuncSetAttribute", Function, int32_t, int32_t)                                         \
  F(LaunchKernel, "cuLaunchKernel", Function, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, \
    Stream, void**, void**)                                                                                         \
  F(IpcGetMemHandle, "cuIpcGetMemHandle", IpcHandle*, DeviceAddress)                                                \
  F(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", DeviceAddress*, IpcHandle, uint32_t)                                 \
  F(IpcCloseMemHandle, "cuIpcCloseMemHandle", DeviceAddress)

// Of newer drivers: nullptr where there is none. (The first version of the wait was off unless asked for.)
#define BYTEPS_LIKE_CUDA_OPTIONAL(F)                                                        \
  F(StreamWaitValue, "cuStreamWaitValue32_v2", Stream, DeviceAddress, uint32_t, uint32_t)   \
  F(StreamWriteValue, "cuStreamWriteValue32_v2", Stream, DeviceAddress, uint32_t, uint32_t) \
  F(MemGetRangeHandle, "cuMemGetHandleForAddressRange", void*, DeviceAddress, size_t, int32_t, uint64_t)

struct Functions {
#define BYTEPS_LIKE_CUDA_MEMBER(name, symbol, ...) Outcome (*name)(__VA_ARGS__) = nullptr;
  BYTEPS_LIKE_CUDA_FUNCTIONS(BYTEPS_LIKE_CUDA_MEMBER)
  BYTEPS_LIKE_CUDA_OPTIONAL(BYTEPS_LIKE_CUDA_MEMBER)
#undef BYTEPS_LIKE_CUDA_MEMBER
};

}  // namespace byteps_like::cuda
