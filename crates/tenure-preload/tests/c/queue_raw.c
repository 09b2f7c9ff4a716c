/* As the library for io_uring: its system calls do not go through the C library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

long give(int to, const struct iovec *part) {
#if defined __x86_64__
    long result;
    register long count __asm__("rdx") = 1;
    register long flags __asm__("r10") = SPLICE_F_GIFT;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_vmsplice), "D"(to), "S"(part), "r"(count), "r"(flags)
                     : "rcx", "r11", "memory");
    return result;
#elif defined __aarch64__
    register long result __asm__("x0") = to;
    register long parts __asm__("x1") = (long)part;
    register long count __asm__("x2") = 1;
    register long flags __asm__("x3") = SPLICE_F_GIFT;
    register long number __asm__("x8") = SYS_vmsplice;
    __asm__ volatile("svc 0"
                     : "+r"(result)
                     : "r"(parts), "r"(count), "r"(flags), "r"(number)
                     : "memory");
    return result;
#else
    return part ? -ENOSYS : to;
#endif
}
