/* A program that fills its missing pages by a userfaultfd, and passes its requests in every form that the kernel
 * takes. */
#include "check.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

static int fd;
static const char *form;
static char page[4096] __attribute__((aligned(4096)));

static int request(unsigned number, void *argument) {
    if (!strcmp(form, "by number"))
        return syscall(SYS_ioctl, fd, number, argument);
    /* An int has the sign in the bits beyond. */
    return ioctl(fd, strcmp(form, "int") ? (unsigned long)number : (unsigned long)(long)(int)number, argument);
}

static void *handles(void *unused) {
    struct uffd_msg message;
    while (read(fd, &message, sizeof message) > 0) {
        struct uffdio_copy copy = {
            .dst = message.arg.pagefault.address & ~4095ull, .src = (uintptr_t)page, .len = 4096};
        request(UFFDIO_COPY, &copy);
    }
    return unused;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    form = arguments[1];
    memset(page, 'X', sizeof page);
    char *former = map(MIB);
    memset(former, 'o', MIB);
    CHECK(munmap(former, MIB) == 0);
    char *at[2] = {map(MIB), NULL};
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || request(UFFDIO_API, &api) != 0) {
        puts("refused");
        return 0;
    }
    former = map(MIB);
    memset(former, 'o', MIB);
    CHECK(munmap(former, MIB) == 0);
    at[1] = map(MIB);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, handles, NULL) == 0);
    for (int n = 0; n < 2; n++) {
        struct uffdio_register range = {
            .range = {(uintptr_t)at[n], MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        CHECK(request(UFFDIO_REGISTER, &range) == 0);
        for (size_t byte = 0; byte < MIB; byte += 4096)
            CHECK(at[n][byte] == 'X');
    }
    puts("filled");
    fflush(stdout);
    _exit(0);
}
