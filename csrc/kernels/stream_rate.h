// The yardstick of the kernels: what this machine's memory allows one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps_like::kernels {

// a[i] += b[i] in fp32, as a plain loop that the compiler vectorises for the instruction set in use.
void PlainAdd(float* a, const float* b, size_t count);

// The bits of all elements or'ed, as a plain loop: what reading costs where nothing is written.
uint32_t PlainOr(const float* a, size_t count);

// Median rate of PlainAdd on two fresh arrays of `bytes` each, repeated for about `seconds` (three times at least): in
// bytes per second of the thread's own CPU time, counting two reads and one write. Blocks; 0 if there is no memory.
double StreamRate(size_t bytes, double seconds);

}  // namespace byteps_like::kernels
