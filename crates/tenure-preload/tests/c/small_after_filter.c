/* A thread whose blocks were all large confines itself, and then allocates its first small block. The
 * C library must have made its heap before, as without tenure. */
#include "confine.h"
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Not getrandom and mprotect, which glibc needs for its first heap. */
static void *confined(void *unused) {
    (void)unused;
    char *large = malloc(8 * MIB);
    fill(large, 8 * MIB, 1);
    ALLOW_ONLY(SYS_write, SYS_mmap, SYS_munmap, SYS_brk, SYS_exit_group);
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
