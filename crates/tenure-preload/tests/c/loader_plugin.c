/* While the loader loads it, it waits for a thread that makes a call for the first time. */
#include "check.h"
#include <sys/socket.h>
#include <sys/uio.h>

static void *calls(void *unused) {
    int one = 1;
#if CALL == 0
    setsockopt(-1, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
#elif CALL == 1
    msync(NULL, 4096, MS_ASYNC);
#elif CALL == 2
    malloc_trim(0);
#elif CALL == 3
    mallinfo2();
#elif CALL == 4
    unshare(0);
    setns(-1, 0);
#elif CALL == 5
    for (int n = 0; n < 20; n++) {
        char *block = malloc(8 * MIB);
        fill(block, 8 * MIB, n);
        free(block);
    }
#elif CALL == 6
    vmsplice(-1, NULL, 0, 0);
#elif CALL == 7
    send(-1, NULL, 0, 0);
    sendto(-1, NULL, 0, 0, NULL, 0);
    sendmsg(-1, NULL, 0);
    sendmmsg(-1, NULL, 0, 0);
#else
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
#endif
    (void)one;
    return unused;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, calls, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}
