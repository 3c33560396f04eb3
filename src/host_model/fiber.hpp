// Fibers: a stack and a saved stack pointer. On x86-64 a switch saves the six callee-saved
// registers (System V ABI) and costs a few nanoseconds; elsewhere, or with STEPWELL_FIBER_UCONTEXT,
// it is swapcontext, which pays a system call for the signal mask.
//
// An exception must not leave a fiber. A failed launch abandons the others without unwinding them,
// so nothing that lives on a fiber's stack across a switch may own memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

#if !defined(__x86_64__) && !defined(STEPWELL_FIBER_UCONTEXT)
#define STEPWELL_FIBER_UCONTEXT 1
#endif
#if defined(STEPWELL_FIBER_UCONTEXT)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define STEPWELL_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define STEPWELL_FIBER_ASAN 1
#endif
#endif
#if defined(STEPWELL_FIBER_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace stepwell::host_model {

/// An mmapped stack with a guard page below it; pages are committed when first touched.
class Stack {
 public:
  explicit Stack(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(memory);
    mprotect(base_, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE);
  }
  Stack(Stack&& other) noexcept : base_(other.base_), bytes_(other.bytes_) {
    other.base_ = nullptr;
  }
  Stack& operator=(Stack&&) = delete;
  ~Stack() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  char* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

 private:
  char* base_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Fiber {
#if defined(STEPWELL_FIBER_UCONTEXT)
  ucontext_t context;
#else
  void* stack_pointer = nullptr;
#endif
  const void* stack = nullptr;  // for AddressSanitizer
  std::size_t stack_bytes = 0;
};

extern "C" void stepwell_switch_fiber(void** save, void* load);  // fiber.cpp

inline void switch_fiber(Fiber& from, Fiber& to) {
#if defined(STEPWELL_FIBER_ASAN)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(STEPWELL_FIBER_UCONTEXT)
  swapcontext(&from.context, &to.context);
#else
  stepwell_switch_fiber(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(STEPWELL_FIBER_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

/// The first thing a fiber does; `from` is who started it.
inline void enter_fiber([[maybe_unused]] Fiber& from) {
#if defined(STEPWELL_FIBER_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &from.stack, &from.stack_bytes);
#endif
}

/// `entry` must not return.
inline void start_fiber(Fiber& fiber, const Stack& stack, void (*entry)()) {
  fiber.stack = stack.base();
  fiber.stack_bytes = stack.bytes();
#if defined(STEPWELL_FIBER_ASAN)
  __asan_unpoison_memory_region(stack.base(), stack.bytes());  // left by an abandoned fiber
#endif
#if defined(STEPWELL_FIBER_UCONTEXT)
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack.base();
  fiber.context.uc_stack.ss_size = stack.bytes();
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#else
  const auto top =
      reinterpret_cast<std::uintptr_t>(stack.base() + stack.bytes()) & ~std::uintptr_t{15};
  auto* p = reinterpret_cast<void**>(top);
  *--p = nullptr;                         // keeps the stack aligned as after a call
  *--p = reinterpret_cast<void*>(entry);  // where the first switch jumps
  for (int i = 0; i < 6; ++i) *--p = nullptr;
  fiber.stack_pointer = p;
#endif
}

}  // namespace stepwell::host_model
