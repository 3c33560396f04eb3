#include "host_model/fiber.hpp"

#if !defined(STEPWELL_FIBER_UCONTEXT)
asm(R"(
        .text
        .globl  stepwell_switch_fiber
        .type   stepwell_switch_fiber, @function
stepwell_switch_fiber:
        pushq   %rbp
        pushq   %rbx
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        movq    %rsp, (%rdi)
        movq    %rsi, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        popq    %rcx            # not ret: the return predictor knows nothing of fibers
        jmpq    *%rcx
        .size   stepwell_switch_fiber, .-stepwell_switch_fiber
        .section .note.GNU-stack,"",@progbits
        .text
)");
#endif
