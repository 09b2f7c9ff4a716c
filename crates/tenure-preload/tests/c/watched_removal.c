/* A block is freed in a range that a userfaultfd watches for removals. free must not raise such
 * an event, and waits for no handler. */
#include "check.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

int main(void) {
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_EVENT_REMOVE, 0};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) {
        puts("not allowed");
        return 0;
    }
    size_t len = 48 * MIB;
    for (int n = 0; n < 3; n++) {
        char *block = malloc(len);
        memset(block, 1, len);
        uintptr_t first = ((uintptr_t)block + 4095) & ~(uintptr_t)4095;
        struct uffdio_register range = {{first, len / 2}, UFFDIO_REGISTER_MODE_MISSING, 0};
        CHECK(ioctl(fd, UFFDIO_REGISTER, &range) == 0);
        free(block);
    }
    struct uffd_msg event;
    CHECK(read(fd, &event, sizeof event) == -1 && errno == EAGAIN);
    puts("freed");
    return 0;
}
