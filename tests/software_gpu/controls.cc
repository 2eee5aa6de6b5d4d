// What tests tell the software GPU, and ask it: C names in libsoftware_cuda.so. Test-only.
#include "tests/software_gpu/device.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace software_gpu;  // NOLINT: the library is nothing else

namespace {

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

// Ends streams and events, forgets failures, delays, misuse and adopted memory. Nobody uses the library meanwhile.
EXPORT void software_gpu_reset() { Software::Get().Reset(); }
EXPORT void software_gpu_copy_delay(uint32_t microseconds) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().delay_us = microseconds;
}
// Streams take so many tasks before a wait for a word, or the writing of one, blocks. 0: any number.
EXPORT void software_gpu_queue_length(uint64_t tasks) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().queue_length = tasks;
}
// From now on only this thread may make calls that may wait for the whole device (to take, free and lock memory, to
// load and unload modules) while a stream waits for a word: others wait for none of its words.
EXPORT void software_gpu_program() {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().program = std::this_thread::get_id();
}
// Calls of this function don't return, until it is another's turn ("": nobody's).
EXPORT void software_gpu_hold(const char* function) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().held = function;
  Software::Get().changed.notify_all();
}
// Streams share so many queues of the hardware, each in order. 0: they don't.
EXPORT void software_gpu_connections(uint64_t queues) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().connections = queues;
}
// The `nth` call from now on (1: the next) of the function, by its symbol, returns `error`, once.
EXPORT void software_gpu_fail(const char* function, uint32_t nth, int error) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().failures[function] = {nth, error};
}
// Failures that were asked for and have not come.
EXPORT uint32_t software_gpu_failures() {
  std::lock_guard lock(Software::Get().mutex);
  return static_cast<uint32_t>(Software::Get().failures.size());
}
// All calls fail from now on, what is queued is dropped, host functions too.
EXPORT void software_gpu_lose() {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().lost = true;
  Software::Get().changed.notify_all();
}
// A graph is being captured, by another thread on a stream of its own.
EXPORT void software_gpu_capture(int on) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().capturing = on != 0;
}
EXPORT void software_gpu_wait_values(int supported) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().waits = supported != 0;
}
// Host memory that counts as device memory: CPU tensors of a test.
EXPORT void software_gpu_adopt(void* data, uint64_t bytes) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().memory[AddressOf(data)] = {0, bytes, -1, false, true};
}
EXPORT void software_gpu_disown(void* data) {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().memory.erase(AddressOf(data));
}
EXPORT uint64_t software_gpu_allocated() {
  std::lock_guard lock(Software::Get().mutex);
  uint64_t bytes = 0;
  for (const auto& [address, one] : Software::Get().memory) bytes += one.own ? one.bytes : 0;
  return bytes;
}
// Streams, events, page-locked ranges and mapped memory that have not been given back.
EXPORT uint64_t software_gpu_objects() {
  Software& software = Software::Get();
  std::lock_guard lock(software.mutex);
  uint64_t mapped = 0;
  for (const auto& [address, one] : software.memory) mapped += one.adopted ? 0 : 1;
  return software.streams.size() + software.events.size() + software.pinned.size() + mapped;
}
// What was done wrong, a line each; "": nothing. Until the next call.
EXPORT const char* software_gpu_misuse() {
  static std::string text;
  std::lock_guard lock(Software::Get().mutex);
  text = Software::Get().misuse();
  return text.c_str();
}
// Of a test that was misusing it.
EXPORT void software_gpu_forgive() {
  std::lock_guard lock(Software::Get().mutex);
  Software::Get().Forgive();
}
