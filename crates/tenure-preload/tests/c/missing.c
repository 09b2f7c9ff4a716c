/* The handler of a userfaultfd gets an event for every page that the program has not touched,
 * and for no other page. */
#include "check.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

enum { LEN = 2 << 20, PAGE = 4096 };

static int watch = -1;
static _Atomic int asked;

static void *supply(void *unused) {
    static char page[PAGE];
    struct uffd_msg message;
    (void)unused;
    memset(page, 'u', PAGE);
    while (read(watch, &message, sizeof message) == sizeof message) {
        CHECK(message.event == UFFD_EVENT_PAGEFAULT);
        struct uffdio_copy copy = {.dst = message.arg.pagefault.address & ~(PAGE - 1ull),
                                   .src = (uintptr_t)page, .len = PAGE};
        asked++;
        CHECK(ioctl(watch, UFFDIO_COPY, &copy) == 0);
    }
    return NULL;
}

static void open_watch(int by_device) {
    int flags = O_CLOEXEC | 1; /* UFFD_USER_MODE_ONLY */
    if (by_device) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        if (device >= 0) {
            watch = ioctl(device, _IO(0xAA, 0), flags);
            close(device);
        }
    }
    if (watch < 0)
        watch = syscall(SYS_userfaultfd, flags);
}

static void reg(void *at) {
    struct uffdio_register all = {.range = {(uintptr_t)at, LEN},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(watch, UFFDIO_REGISTER, &all) == 0);
}

/* Every page of this memory was used, and its next owner finds it warm. */
static void use(void) {
    char *at = map(LEN);
    memset(at, 1, LEN);
    CHECK(munmap(at, LEN) == 0);
}

static void check_all_supplied(char *at, const char *what) {
    int bad = 0, before = asked;
    for (int n = 0; n < LEN; n += PAGE)
        bad += at[n] != 'u';
    printf("%s: %d wrong, %d asked\n", what, bad, asked - before);
}

static void check_child(void) {
    /* A child's own userfaultfd, and a mapping from before the fork. */
    use();
    char *before = map(LEN);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        pthread_t thread;
        asked = 0;
        watch = -1;
        open_watch(0);
        struct uffdio_api api = {.api = UFFD_API};
        CHECK(watch >= 0 && ioctl(watch, UFFDIO_API, &api) == 0);
        CHECK(pthread_create(&thread, NULL, supply, NULL) == 0);
        reg(before);
        check_all_supplied(before, "mapped before a fork");
        use();
        char *at = map(LEN);
        reg(at);
        check_all_supplied(at, "mapped in a child");
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(munmap(before, LEN) == 0);
}

int main(void) {
    pthread_t thread;
    open_watch(0);
    if (watch < 0) {
        puts("no userfaultfd");
        return 0;
    }
    close(watch);
    watch = -1;
    fflush(stdout);
    check_child();

    use();
    char *early = map(LEN);
    use();
    char *changed = map(LEN), *written = map(LEN);
    /* Its state was changed before, and part of it is unmapped or cannot be read. */
    CHECK(madvise(changed, LEN, MADV_DONTDUMP) == 0);
    changed[5 * PAGE] = 7;
    CHECK(mprotect(changed + 8 * PAGE, 2 * PAGE, PROT_NONE) == 0);
    for (int n = 0; n < LEN; n += 2 * PAGE)
        written[n + 17] = 'w';

    open_watch(1);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(watch >= 0 && ioctl(watch, UFFDIO_API, &api) == 0);
    CHECK(pthread_create(&thread, NULL, supply, NULL) == 0);

    reg(early);
    check_all_supplied(early, "mapped before UFFDIO_API");
    reg(changed);
    CHECK(mprotect(changed + 8 * PAGE, 2 * PAGE, RW) == 0);
    int bad = 0, before = asked;
    for (int n = 0; n < LEN; n += PAGE)
        bad += changed[n] != (n == 5 * PAGE ? 7 : 'u');
    printf("changed: %d wrong, %d asked\n", bad, asked - before);
    reg(written);
    bad = 0, before = asked;
    for (int n = 0; n < LEN; n += PAGE)
        bad += written[n + 17] != (n % (2 * PAGE) ? 'u' : 'w');
    printf("written in part: %d wrong, %d asked\n", bad, asked - before);

    use();
    char *late = map(LEN);
    reg(late);
    check_all_supplied(late, "mapped after it");

    /* No handler serves the pages of the next owner. */
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    close(watch);
    CHECK(munmap(early, LEN) == 0 && munmap(changed, LEN) == 0 && munmap(written, LEN) == 0);
    for (int n = 0; n < 4; n++)
        CHECK(is_zero(map(LEN), LEN));
    return 0;
}
