/* A thread whose blocks were all large confines itself, and then allocates its first small block. The
 * C library must have made its heap before, as without tenure. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Not getrandom and mprotect, which glibc needs for its first heap. */
static void *confined(void *unused) {
    (void)unused;
    char *large = malloc(8 * MIB);
    fill(large, 8 * MIB, 1);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write),
        ALLOW(SYS_mmap),
        ALLOW(SYS_munmap),
        ALLOW(SYS_brk),
        ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    char *volatile small = malloc(100);
    _exit(small == NULL);
}

int main(void) {
    for (int second = 0; second < 2; second++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            pthread_t thread;
            if (second) {
                CHECK(pthread_create(&thread, NULL, confined, NULL) == 0);
                CHECK(pthread_join(thread, NULL) == 0);
            }
            confined(NULL);
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 0)
            fprintf(stderr, "thread %d: status %x\n", second, status);
        CHECK(status == 0);
    }
    puts("ok");
    return 0;
}
