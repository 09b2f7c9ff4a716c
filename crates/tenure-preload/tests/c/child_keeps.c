/* A program with a second thread frees much memory, and a child that frees nothing lives on. The
 * child must not keep that memory. */
#include "check.h"

enum { BLOCKS = 100 };

static void *idle(void *unused) {
    pause();
    return unused;
}

int main(void) {
    pthread_t thread;
    char *blocks[BLOCKS];
    int status;
    CHECK(pthread_create(&thread, NULL, idle, NULL) == 0);
    for (int n = 0; n < BLOCKS; n++) {
        CHECK((blocks[n] = malloc(2 * MIB)));
        fill(blocks[n], 2 * MIB, n);
    }
    for (int n = 0; n < BLOCKS; n++)
        free(blocks[n]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        char *own = malloc(2 * MIB);
        fill(own, 2 * MIB, 7);
        CHECK(status_kib("VmRSS") < 100 * 1024 && is_filled(own, 2 * MIB, 7));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("done");
    return 0;
}
