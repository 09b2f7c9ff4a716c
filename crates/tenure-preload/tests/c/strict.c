/* Frees blocks of the C library's heap in seccomp's strict mode, in which every call but read, write
 * and exit ends the process. */
#include "check.h"
#include <linux/seccomp.h>

enum { BLOCKS = 8 };

/* Its parent does not enter the mode, and has the same variables of the thread. */
static void child_of_vfork_enters(int by_prctl) {
    pid_t child = vfork();
    if (child == 0) {
        if (by_prctl)
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        else
            syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL);
        syscall(SYS_exit, 0);
    }
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    for (int round = 0; round < 100; round++) {
        void *block = malloc(4 * MIB);
        CHECK(block);
        fill(block, 4 * MIB, round);
        free(block);
    }
    CHECK(status_kib("VmRSS:") < 200 * 1024);
}

int main(int count, char **arguments) {
    char *blocks[BLOCKS];
    int by_prctl = count > 1 && !strcmp(arguments[1], "prctl");
    CHECK(mallopt(M_MMAP_THRESHOLD, (int)MIB) == 1 && mallopt(M_TRIM_THRESHOLD, 1 << 28) == 1);
    for (int round = 0; round < 20; round++) {
        for (int n = 0; n < BLOCKS; n++) {
            CHECK(blocks[n] = malloc(100 * KIB));
            fill(blocks[n], 100 * KIB, n);
        }
        for (int n = 0; n < BLOCKS && round < 19; n++)
            free(blocks[n]);
    }
    child_of_vfork_enters(by_prctl);
    /* libseccomp asks so whether the kernel knows the call. */
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1);
    free(blocks[0]);
    blocks[0] = NULL;
    if ((by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)
                  : (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL)) != 0) {
        puts("there is a filter already");
        return 0;
    }
    for (int n = 0; n < BLOCKS; n++)
        free(blocks[n]);
    static const char done[] = "all blocks are freed\n";
    int said = write(1, done, sizeof done - 1) == sizeof done - 1;
    syscall(SYS_exit, !said);
}
