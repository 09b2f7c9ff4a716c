/* A thread that has used the pool confines itself to what the C library needs, and ends. The library
 * may make no other call on it, also where it has not seen the call that confines. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* prctl past the C library. Where this file does not know how, through it. */
static long raw_prctl(long option, long first, long second) {
#ifdef __x86_64__
    long answer = SYS_prctl;
    register long fourth __asm__("r10") = 0;
    register long fifth __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "+a"(answer)
                     : "D"(option), "S"(first), "d"(second), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return answer;
#else
    return prctl(option, first, second, 0, 0);
#endif
}

static void *confined(void *raw) {
    for (int n = 0; n < 3; n++) {
        char *block = malloc(8 * MIB);
        fill(block, 8 * MIB, n);
        free(block);
    }
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write),
        ALLOW(SYS_exit),
        ALLOW(SYS_futex),
        ALLOW(SYS_madvise),
        ALLOW(SYS_mmap),
        ALLOW(SYS_munmap),
        ALLOW(SYS_mprotect),
        ALLOW(SYS_rt_sigprocmask),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (raw) {
        CHECK(raw_prctl(PR_SET_NO_NEW_PRIVS, 1, 0) == 0);
        CHECK(raw_prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program) == 0);
    } else {
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    }
    return NULL;
}

int main(void) {
    for (long raw = 0; raw < 2; raw++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, confined, (void *)raw) == 0 && pthread_join(thread, NULL) == 0);
            _exit(0);
        }
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    puts("done");
    return 0;
}
