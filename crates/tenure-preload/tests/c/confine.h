/* A program confines itself. */
#ifndef CONFINE_H
#define CONFINE_H
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>

/* From now on every call of the thread but these ends the process. */
#define ALLOW_ONLY(...)                                                                            \
    allow_only((const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int), 1)

static inline void allow_only(const int *numbers, size_t count, int by_prctl) {
    enum { MOST = 16 };
    CHECK(count <= MOST);
    struct sock_filter code[2 * MOST + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    struct sock_fprog program = {1, code};
    for (size_t n = 0; n < count; n++) {
        struct sock_filter allow[] = {
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)numbers[n], 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        memcpy(code + program.len, allow, sizeof allow);
        program.len += 2;
    }
    code[program.len++] =
        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_prctl)
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    else
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}
#endif
