// Our own declaration of CUDA's driver interface against cuda.h, where it is installed; `make kernels` brings one and
// compiles this with it. All of it at compile time.
#if __has_include(<cuda.h>)
#include "csrc/gpu/cuda_abi.h"

#include <cuda.h>

#include <cstdint>
#include <type_traits>

namespace byteps_like::cuda {
namespace {

// Arguments are told apart by their size, and by whether they are pointers: what calls depend on.
template <typename Result, typename... Arguments>
constexpr uint64_t Shape(Result (*)(Arguments...)) {
  uint64_t shape = sizeof...(Arguments);
  ((shape = shape * 257 + sizeof(Arguments) * 2 + (std::is_pointer_v<Arguments> ? 1 : 0)), ...);
  return shape * 257 + sizeof(Result);
}

// The member of our table, and the symbol that it is looked up by.
#define SAME_FUNCTION(member, symbol)                                                                          \
  static_assert(Shape(decltype(Functions::member){nullptr}) == Shape(static_cast<decltype(&symbol)>(nullptr)), \
                #symbol);                                                                                      \
  static_assert(__COUNTER__ >= 0)
#define SAME_VALUE(ours, theirs) static_assert(static_cast<int64_t>(ours) == static_cast<int64_t>(theirs), #theirs)
#define SAME_SIZE(ours, theirs) \
  static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) <= alignof(theirs), #theirs)

SAME_SIZE(Outcome, CUresult);
SAME_SIZE(Device, CUdevice);
SAME_SIZE(DeviceAddress, CUdeviceptr);
SAME_SIZE(IpcHandle, CUipcMemHandle);
SAME_SIZE(Uuid, CUuuid);
SAME_VALUE(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
SAME_VALUE(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(kFileNotFound, CUDA_ERROR_FILE_NOT_FOUND);
SAME_VALUE(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(kNotFound, CUDA_ERROR_NOT_FOUND);
SAME_VALUE(kNotReady, CUDA_ERROR_NOT_READY);
SAME_VALUE(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(kAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_VALUE(kNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_VALUE(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(kCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME_VALUE(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME_VALUE(kHostPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME_VALUE(kHostDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_VALUE(kWaitGreaterEqual, CU_STREAM_WAIT_VALUE_GEQ);
SAME_VALUE(kLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME_VALUE(kPciBus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_VALUE(kPciDevice, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_VALUE(kPciDomain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_VALUE(kMostShared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_VALUE(kFunctionShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(kRangeDmaBuf, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME_VALUE(kPointerDevice, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);

constexpr int kFirst = __COUNTER__;
SAME_FUNCTION(Init, cuInit);
SAME_FUNCTION(DriverGetVersion, cuDriverGetVersion);
SAME_FUNCTION(GetErrorName, cuGetErrorName);
SAME_FUNCTION(GetErrorString, cuGetErrorString);
SAME_FUNCTION(DeviceGetCount, cuDeviceGetCount);
SAME_FUNCTION(DeviceGet, cuDeviceGet);
SAME_FUNCTION(DeviceGetName, cuDeviceGetName);
SAME_FUNCTION(DeviceGetUuid, cuDeviceGetUuid_v2);
SAME_FUNCTION(DeviceTotalMem, cuDeviceTotalMem_v2);
SAME_FUNCTION(DeviceGetAttribute, cuDeviceGetAttribute);
SAME_FUNCTION(PrimaryContextRetain, cuDevicePrimaryCtxRetain);
SAME_FUNCTION(PrimaryContextRelease, cuDevicePrimaryCtxRelease_v2);
SAME_FUNCTION(ContextPush, cuCtxPushCurrent_v2);
SAME_FUNCTION(ContextPop, cuCtxPopCurrent_v2);
SAME_FUNCTION(ContextStreamPriorities, cuCtxGetStreamPriorityRange);
SAME_FUNCTION(MemGetInfo, cuMemGetInfo_v2);
SAME_FUNCTION(MemAlloc, cuMemAlloc_v2);
SAME_FUNCTION(MemFree, cuMemFree_v2);
SAME_FUNCTION(MemGetAddressRange, cuMemGetAddressRange_v2);
SAME_FUNCTION(MemHostRegister, cuMemHostRegister_v2);
SAME_FUNCTION(MemHostUnregister, cuMemHostUnregister);
SAME_FUNCTION(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2);
SAME_FUNCTION(PointerGetAttribute, cuPointerGetAttribute);
SAME_FUNCTION(MemcpyDown, cuMemcpyDtoHAsync_v2);
SAME_FUNCTION(MemcpyUp, cuMemcpyHtoDAsync_v2);
SAME_FUNCTION(Memcpy, cuMemcpyAsync);
SAME_FUNCTION(MemsetBytes, cuMemsetD8Async);
SAME_FUNCTION(StreamCreate, cuStreamCreateWithPriority);
SAME_FUNCTION(StreamDestroy, cuStreamDestroy_v2);
SAME_FUNCTION(StreamQuery, cuStreamQuery);
SAME_FUNCTION(StreamSynchronize, cuStreamSynchronize);
SAME_FUNCTION(StreamWaitEvent, cuStreamWaitEvent);
SAME_FUNCTION(ThreadExchangeCaptureMode, cuThreadExchangeStreamCaptureMode);
SAME_FUNCTION(StreamIsCapturing, cuStreamIsCapturing);
SAME_FUNCTION(EventCreate, cuEventCreate);
SAME_FUNCTION(EventDestroy, cuEventDestroy_v2);
SAME_FUNCTION(EventRecord, cuEventRecord);
SAME_FUNCTION(EventQuery, cuEventQuery);
SAME_FUNCTION(EventSynchronize, cuEventSynchronize);
SAME_FUNCTION(LaunchHostFunction, cuLaunchHostFunc);
SAME_FUNCTION(ModuleLoad, cuModuleLoad);
SAME_FUNCTION(ModuleUnload, cuModuleUnload);
SAME_FUNCTION(ModuleGetFunction, cuModuleGetFunction);
SAME_FUNCTION(FunctionSetAttribute, cuFuncSetAttribute);
SAME_FUNCTION(LaunchKernel, cuLaunchKernel);
SAME_FUNCTION(IpcGetMemHandle, cuIpcGetMemHandle);
SAME_FUNCTION(IpcOpenMemHandle, cuIpcOpenMemHandle_v2);
SAME_FUNCTION(IpcCloseMemHandle, cuIpcCloseMemHandle);
SAME_FUNCTION(StreamWaitValue, cuStreamWaitValue32_v2);
SAME_FUNCTION(StreamWriteValue, cuStreamWriteValue32_v2);
SAME_FUNCTION(MemGetRangeHandle, cuMemGetHandleForAddressRange);
#define ONE(...) +1
static_assert(__COUNTER__ - kFirst - 1 == 0 BYTEPS_LIKE_CUDA_FUNCTIONS(ONE) BYTEPS_LIKE_CUDA_OPTIONAL(ONE), "all");

}  // namespace
}  // namespace byteps_like::cuda
#endif
