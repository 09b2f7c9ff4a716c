/* The kernel refuses a pointer to no memory with an errno. */
#include "check.h"
#include <sys/ioctl.h>
#include <sys/uio.h>

static void say(const char *what, long answer) {
    printf("%s: %ld, %s\n", what, answer, answer < 0 ? strerror(errno) : "");
}

int main(void) {
    /* The compiler must not know the value. */
    void *volatile low = (void *)8;
    char *volatile edge = mmap(NULL, 8192, RW, ANON, -1, 0);
    unsigned long uffdio_register = 0xc020aa00ul, uffdio_api = 0xc018aa3ful;
    int file = open("/dev/null", O_RDONLY);
    CHECK(file >= 0 && edge != MAP_FAILED && mprotect(edge + 4096, 4096, PROT_NONE) == 0);
    free(malloc(4 * MIB));
    CHECK(munmap(map(4 * MIB), 4 * MIB) == 0);

    say("ioctl", ioctl(file, uffdio_register, low));
    say("ioctl at an edge", ioctl(file, uffdio_register, edge + 4096 - 16));
    say("ioctl of nothing", ioctl(file, uffdio_register, NULL));
    say("ioctl that greets", ioctl(file, uffdio_api, low));
    int watch = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    if (watch >= 0) {
        say("greeting", ioctl(watch, uffdio_api, low));
        say("registering", ioctl(watch, uffdio_register, low));
    }
    for (int flags = 0; flags < 2; flags++) {
        int self = syscall(SYS_pidfd_open, getpid(), 0);
        say("process_madvise", process_madvise(self, low, 1, MADV_HUGEPAGE, flags));
        say("of nobody", process_madvise(-1, low, 1, MADV_HUGEPAGE, flags));
        say("at an edge", process_madvise(self, (void *)(edge + 4096 - 16), 2, MADV_COLD, flags));
    }
    say("setrlimit", setrlimit(RLIMIT_AS, low));
    say("setrlimit at an edge", setrlimit(RLIMIT_AS, (void *)(edge + 4096 - 8)));
    say("prlimit", prlimit(0, RLIMIT_AS, low, NULL));
    say("prlimit into it", prlimit(0, RLIMIT_AS, NULL, low));
    say("prlimit of itself", prlimit(getpid(), RLIMIT_AS, low, NULL));
    return 0;
}
