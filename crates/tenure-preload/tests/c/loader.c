/* The loader's state is the program's: its message, and the C library's heap, which begins with the program. */
#include "check.h"
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>

static int has_heap(void) {
    static char maps[1 << 16];
    size_t len = 0;
    ssize_t got;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    while ((got = read(fd, maps + len, sizeof maps - 1 - len)) > 0)
        len += got;
    close(fd);
    return strstr(maps, "[heap]") != NULL;
}

/* Whether the message of the load that failed before is still there. Fails anew for the next call. */
static void keeps(const char *call) {
    const char *message = dlerror();
    printf("%s: %s\n", call, message ? message : "no message");
    CHECK(!dlopen("no-such-library.so", RTLD_NOW));
}

int main(void) {
    int heap = has_heap(), one = 1, ends[2];
    printf("heap %d\n", heap);
    keeps("start");
    msync(NULL, 4096, MS_ASYNC);
    keeps("msync");
    malloc_trim(0);
    keeps("malloc_trim");
    mallinfo2();
    keeps("mallinfo2");
    setsockopt(-1, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    keeps("setsockopt");
    send(-1, &one, sizeof one, 0);
    sendto(-1, &one, sizeof one, 0, NULL, 0);
    sendmsg(-1, NULL, 0);
    sendmmsg(-1, NULL, 0, 0);
    keeps("send");
    unshare(0);
    keeps("unshare");
    setns(-1, 0);
    keeps("setns");
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    keeps("fork");
    CHECK(pipe(ends) == 0);
    vmsplice(ends[1], &(struct iovec){&one, sizeof one}, 1, 0);
    keeps("vmsplice");
    return 0;
}
