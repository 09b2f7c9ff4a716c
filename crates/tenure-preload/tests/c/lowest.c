/* An open gets the lowest free number, also while the library starts its threads: in a process with threads, and in its
 * children. */
#include "check.h"

static void allocate(void) {
    for (int n = 0; n < 3; n++) {
        char *at = malloc(8 * MIB);
        CHECK(at);
        memset(at, 1, 8 * MIB);
        free(at);
    }
}

static void *waits(void *unused) {
    for (;;)
        pause();
    return unused;
}

static void opens_for(long ms, int lowest) {
    for (long end = ms_now() + ms; ms_now() < end;)
        for (int n = 0; n < 20; n++) {
            int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
            CHECK(fd == lowest);
            close(fd);
        }
}

int main(void) {
    pthread_t thread;
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(lowest);
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    allocate();
    opens_for(100, lowest);
    for (int n = 0; n < sweep(20, 400); n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            allocate();
            opens_for(30, lowest);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    puts("the lowest number is free");
    return 0;
}
