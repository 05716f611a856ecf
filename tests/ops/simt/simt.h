// CUDA's thread model on one CPU thread, for tests. The threads of a block are
// fibers that switch at barriers and shuffles; blocks run one after another.
// Shared memory starts as NaN, and writes beyond the launch's size are detected.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __launch_bounds__(...)

struct Index {
  unsigned x, y, z;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

// NaN becomes 0, as on a GPU.
inline float __saturatef(float value) {
  return value > 0 ? (value < 1 ? value : 1.f) : 0.f;
}

namespace simt {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;
constexpr std::size_t kStack = 128 * 1024;
constexpr std::size_t kMaxShared = 227 * 1024;
constexpr std::size_t kGuard = 64 * 1024;
constexpr unsigned char kPoison = 0xff;

enum State { kReady, kAtBlock, kAtWarp, kDone };
enum Result { kOk, kDeadlock, kSharedOverrun, kBadLaunch };

struct Fiber {
  ucontext_t context;  // for the start; later jumps need no system calls
  jmp_buf jump;
  bool started;
  State state;
};

inline std::vector<Fiber> fibers(kMaxThreads);
inline std::vector<char> stacks(kMaxThreads * kStack);
inline float exchanged[kMaxThreads];
inline jmp_buf scheduler;
inline unsigned long long barriers;  // that all blocks have reached so far
inline unsigned current;
inline void (*body)(const void*);
inline const void* arguments;

inline void wait(State state) {
  fibers[current].state = state;
  if (_setjmp(fibers[current].jump) == 0) _longjmp(scheduler, 1);
}

// A fiber runs the same thread of all blocks.
inline void run_fiber() {
  for (;;) {
    body(arguments);
    wait(kDone);
  }
}

// Not inlined, so that the jump back changes no variable of the caller.
__attribute__((noinline)) inline void resume(unsigned thread) {
  Fiber& fiber = fibers[thread];
  current = thread;
  threadIdx = {thread, 0, 0};
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.jump, 1);
  fiber.started = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stacks.data() + thread * kStack;
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_fiber, 0);
  setcontext(&fiber.context);
}

// Releases the fibers [first, last) once all that still run are in `state`.
inline void release(unsigned first, unsigned last, State state) {
  for (unsigned i = first; i < last; ++i) {
    if (fibers[i].state != state && fibers[i].state != kDone) return;
  }
  for (unsigned i = first; i < last; ++i) {
    if (fibers[i].state == state) fibers[i].state = kReady;
  }
}

// `order` permutes the threads, on which results must not depend.
inline Result run_block(const std::vector<unsigned>& order) {
  const unsigned threads = blockDim.x;
  for (unsigned i = 0; i < threads; ++i) fibers[i].state = kReady;
  for (;;) {
    bool moved = false, done = true;
    for (unsigned i : order) {
      if (fibers[i].state == kReady) {
        moved = true;
        resume(i);
      }
      done = done && fibers[i].state == kDone;
    }
    if (done) return kOk;
    if (!moved) {
      for (Fiber& fiber : fibers) fiber.started = false;
      return kDeadlock;
    }
    for (unsigned i = 0; i < threads; i += kWarp) {
      release(i, std::min(i + kWarp, threads), kAtWarp);
    }
    release(0, threads, kAtBlock);
  }
}

inline Result launch(void (*entry)(const void*), const void* parameters,
                     unsigned grid, unsigned threads, std::size_t shared_bytes,
                     char* shared, bool backwards) {
  if (threads == 0 || threads > kMaxThreads || grid == 0 ||
      shared_bytes > kMaxShared) {
    return kBadLaunch;
  }
  body = entry;
  arguments = parameters;
  gridDim = {grid, 1, 1};
  blockDim = {threads, 1, 1};
  std::vector<unsigned> order(threads);
  for (unsigned i = 0; i < threads; ++i) {
    order[i] = backwards ? threads - 1 - i : i;
  }
  for (unsigned i = 0; i < grid; ++i) {
    blockIdx = {backwards ? grid - 1 - i : i, 0, 0};
    std::memset(shared, kPoison, shared_bytes + kGuard);
    const Result result = run_block(order);
    if (result != kOk) return result;
    for (std::size_t byte = 0; byte < kGuard; ++byte) {
      if (static_cast<unsigned char>(shared[shared_bytes + byte]) != kPoison) {
        return kSharedOverrun;
      }
    }
  }
  return kOk;
}

inline float shuffle(float value, unsigned source_lane) {
  exchanged[current] = value;
  wait(kAtWarp);
  const float result = exchanged[current / kWarp * kWarp + source_lane];
  wait(kAtWarp);
  return result;
}

}  // namespace simt

inline void __syncthreads() {
  simt::barriers += simt::current == 0;
  simt::wait(simt::kAtBlock);
}

inline float __shfl_sync(unsigned, float value, int lane) {
  return simt::shuffle(value, lane);
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return simt::shuffle(value, simt::current % simt::kWarp ^ mask);
}

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Definition of the kernels' `extern __shared__` array.
extern float4 shared[];
float4 shared[(simt::kMaxShared + simt::kGuard) / sizeof(float4)];

extern "C" unsigned long long barriers() { return simt::barriers; }

namespace simt {

// Offsets of a kernel's parameters and, last, their total size. CUDA aligns
// each parameter to its type.
template <typename... Parameters>
constexpr std::array<std::size_t, sizeof...(Parameters) + 1> layout(
    void (*)(Parameters...)) {
  const std::size_t sizes[] = {sizeof(Parameters)...};
  const std::size_t alignments[] = {alignof(Parameters)...};
  std::array<std::size_t, sizeof...(Parameters) + 1> offsets = {};
  std::size_t end = 0;
  for (std::size_t i = 0; i < sizeof...(Parameters); ++i) {
    offsets[i] = (end + alignments[i] - 1) / alignments[i] * alignments[i];
    end = offsets[i] + sizes[i];
  }
  offsets[sizeof...(Parameters)] = end;
  return offsets;
}

template <typename... Parameters, std::size_t... indices>
void call(void (*kernel)(Parameters...), const char* bytes,
          std::index_sequence<indices...>) {
  const auto offsets = layout(kernel);
  kernel(*reinterpret_cast<const Parameters*>(bytes + offsets[indices])...);
}

template <typename... Parameters>
void call(void (*kernel)(Parameters...), const void* bytes) {
  call(kernel, static_cast<const char*>(bytes),
       std::index_sequence_for<Parameters...>());
}

}  // namespace simt

// Defines a C function that launches a kernel with its parameters as bytes.
#define SIMT_KERNEL(kernel)                                               \
  extern "C" int run_##kernel(const void* parameters, unsigned size,      \
                              unsigned grid, unsigned threads,            \
                              unsigned shared_bytes, int backwards) {     \
    if (size != simt::layout(kernel).back()) return simt::kBadLaunch;     \
    return simt::launch([](const void* p) { simt::call(kernel, p); },     \
                        parameters, grid, threads, shared_bytes,          \
                        reinterpret_cast<char*>(shared), backwards != 0); \
  }
