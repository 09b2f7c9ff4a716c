/* A program for Android's ashmem. It includes only one header of tenure's, and calls one
 * function of tenure's, which stands for a moment of little memory. */
#define _GNU_SOURCE
#include <cutils/ashmem.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

ptrdiff_t tenure_ashmem_purge_now(int fd);

#define PAGE ((size_t)4096)
#define PAGES ((size_t)64)
#define SIZE (PAGES * PAGE - 100)

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "%s:%d: not true: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            _exit(1);                                                                            \
        }                                                                                        \
    } while (0)
#define FAILS(call, number) CHECK((errno = 0, call) == -1 && errno == (number))

static unsigned char *map_it(int fd, int prot)
{
    void *at = mmap(NULL, SIZE, prot, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int is_all(const unsigned char *page, unsigned char byte)
{
    for (size_t i = 0; i < PAGE; i++)
        if (page[i] != byte)
            return 0;
    return 1;
}

static int ending(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void send_fd(int socket, int fd)
{
    char byte = 'f', space[CMSG_SPACE(sizeof fd)];
    memset(space, 0, sizeof space);
    struct iovec bytes = { &byte, 1 };
    struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space,
                              .msg_controllen = sizeof space };
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket)
{
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec bytes = { &byte, 1 };
    struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space,
                              .msg_controllen = sizeof space };
    CHECK(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* The pages that are pinned at first, the pages that an unpin releases, and the result of the
 * next pin. */
static void alone(void)
{
    int fd = ashmem_create_region("tiles", SIZE);
    CHECK(fd >= 0 && fd < 100 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(ashmem_valid(fd) && ashmem_get_size_region(fd) == (int)SIZE);
    unsigned char *bytes = map_it(fd, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < PAGES - 1; i++)
        memset(bytes + i * PAGE, (int)i + 1, PAGE);
    CHECK(tenure_ashmem_purge_now(fd) == 0);

    CHECK(ashmem_pin_region(fd, 0, 0) == ASHMEM_NOT_PURGED);
    CHECK(ashmem_pin_region(fd, 0, 0) == ASHMEM_NOT_PURGED);
    CHECK(ashmem_unpin_region(fd, 8 * PAGE, 16 * PAGE) == 0); /* one unpin is enough */
    CHECK(ashmem_pin_region(fd, 8 * PAGE, 4 * PAGE) == ASHMEM_NOT_PURGED);
    for (size_t i = 8; i < 24; i++)
        CHECK(is_all(bytes + i * PAGE, (unsigned char)(i + 1)));
    CHECK(tenure_ashmem_purge_now(fd) == 12);
    for (size_t i = 0; i < PAGES - 1; i++) /* zeros, and no signal */
        CHECK(is_all(bytes + i * PAGE, i >= 12 && i < 24 ? 0 : (unsigned char)(i + 1)));
    CHECK(ashmem_pin_region(fd, 0, 12 * PAGE) == ASHMEM_NOT_PURGED);
    CHECK(ashmem_pin_region(fd, 20 * PAGE, 0) == ASHMEM_WAS_PURGED);
    CHECK(ashmem_pin_region(fd, 20 * PAGE, 0) == ASHMEM_NOT_PURGED); /* it was told */
    CHECK(ashmem_pin_region(fd, 0, 0) == ASHMEM_WAS_PURGED);
    memset(bytes + 12 * PAGE, 77, 12 * PAGE);
    CHECK(tenure_ashmem_purge_now(fd) == 0 && is_all(bytes + 12 * PAGE, 77));

    /* Through another descriptor number. */
    int other = dup(fd);
    CHECK(ashmem_unpin_region(other, 0, PAGE) == 0 && close(fd) == 0);
    CHECK(tenure_ashmem_purge_now(other) == 1);
    CHECK(ashmem_pin_region(other, 0, PAGE) == ASHMEM_WAS_PURGED);
    CHECK(munmap(bytes, SIZE) == 0 && close(other) == 0);
}

static void errors(void)
{
    int null = open("/dev/null", O_RDWR), file = memfd_create("mine", 0);
    CHECK(null >= 0 && file >= 0 && ftruncate(file, 8192) == 0);
    CHECK(!ashmem_valid(null) && !ashmem_valid(file) && !ashmem_valid(-1));
    FAILS(ashmem_get_size_region(null), ENOTTY);
    FAILS(ashmem_pin_region(file, 0, 0), ENOTTY);
    FAILS(ashmem_unpin_region(null, 0, 0), ENOTTY);
    FAILS(ashmem_set_prot_region(file, PROT_READ), ENOTTY);
    FAILS(ashmem_pin_region(-1, 0, 0), EBADF);
    FAILS(ashmem_create_region("none", 0), EINVAL);
    close(null);
    close(file);
    int fd = ashmem_create_region(NULL, SIZE);
    CHECK(fd >= 0);
    FAILS(ashmem_pin_region(fd, 100, PAGE), EINVAL);
    FAILS(ashmem_pin_region(fd, 0, 100), EINVAL);
    FAILS(ashmem_unpin_region(fd, 0, (PAGES + 1) * PAGE), EINVAL);
    FAILS(ashmem_unpin_region(fd, (size_t)-PAGE, PAGE * 2), EINVAL);
    CHECK(ashmem_pin_region(fd, PAGES * PAGE, 0) == ASHMEM_NOT_PURGED); /* nothing */
    CHECK(close(fd) == 0);
    FAILS(ashmem_pin_region(fd, 0, 0), EBADF);
}

static void read_only(void)
{
    int fd = ashmem_create_region("read", SIZE);
    unsigned char *bytes = map_it(fd, PROT_READ | PROT_WRITE);
    bytes[0] = 1;
    CHECK(ashmem_set_prot_region(fd, PROT_READ | PROT_WRITE) == 0);
    FAILS(ashmem_set_prot_region(fd, PROT_NONE), EINVAL);
    CHECK(ashmem_set_prot_region(fd, PROT_READ) == 0);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(map_it(fd, PROT_READ)[0] == 1);
    FAILS(ashmem_set_prot_region(fd, PROT_READ | PROT_WRITE), EINVAL);
    CHECK(ashmem_unpin_region(fd, 0, 0) == 0 && tenure_ashmem_purge_now(fd) == (ptrdiff_t)PAGES);
    CHECK(ashmem_pin_region(fd, 0, 0) == ASHMEM_WAS_PURGED && bytes[0] == 0);
    bytes[0] = 2; /* a mapping from before stays */
    CHECK(close(fd) == 0);
}

/* One process makes the region and does not unpin it. The other process, which has only the
 * descriptor, unpins it. */
static void two_processes(int prot)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    pid_t child = fork();
    char byte;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        int fd = receive_fd(pair[1]);
        unsigned char *bytes = map_it(fd, prot);
        CHECK(ashmem_valid(fd) && ashmem_get_size_region(fd) == (int)SIZE);
        CHECK(is_all(bytes, 1));
        CHECK(ashmem_pin_region(fd, 0, 0) == ASHMEM_NOT_PURGED);
        CHECK(ashmem_unpin_region(fd, 0, 0) == 0);
        CHECK(write(pair[1], "u", 1) == 1 && read(pair[1], &byte, 1) == 1); /* purged there */
        CHECK(is_all(bytes, 0));
        CHECK(ashmem_pin_region(fd, 0, 2 * PAGE) == ASHMEM_WAS_PURGED);
        CHECK(write(pair[1], "p", 1) == 1);
        pause();
    }
    close(pair[1]);
    int fd = ashmem_create_region("two", SIZE);
    unsigned char *bytes = map_it(fd, PROT_READ | PROT_WRITE);
    memset(bytes, 1, SIZE);
    int given = dup(fd);
    CHECK(ashmem_set_prot_region(given, prot) == 0);
    send_fd(pair[0], given);
    CHECK(read(pair[0], &byte, 1) == 1);
    CHECK(tenure_ashmem_purge_now(fd) == (ptrdiff_t)PAGES);
    CHECK(write(pair[0], "g", 1) == 1 && read(pair[0], &byte, 1) == 1);
    memset(bytes, 5, 2 * PAGE);
    CHECK(tenure_ashmem_purge_now(fd) == 0); /* pinned there, or purged before */
    CHECK(is_all(bytes, 5) && is_all(bytes + PAGE, 5) && is_all(bytes + 2 * PAGE, 0));
    /* As with ashmem, a pin belongs to the region, and stays when its process is killed. */
    CHECK(kill(child, SIGKILL) == 0 && ending(child) == 128 + SIGKILL);
    memset(bytes, 6, SIZE);
    struct timespec wait = { 0, 700000000 };
    nanosleep(&wait, NULL);
    CHECK(ashmem_pin_region(fd, 0, 2 * PAGE) == ASHMEM_NOT_PURGED);
    CHECK(ashmem_pin_region(fd, 0, 0) == ASHMEM_WAS_PURGED && is_all(bytes + PAGE, 6));
    CHECK(close(fd) == 0 && close(given) == 0 && close(pair[0]) == 0 && munmap(bytes, SIZE) == 0);
}

/* A child has the regions of its parent. */
static void forked(void)
{
    int fd = ashmem_create_region("forked", SIZE);
    unsigned char *bytes = map_it(fd, PROT_READ | PROT_WRITE);
    memset(bytes, 3, SIZE);
    pid_t child = fork();
    if (child == 0) {
        CHECK(ashmem_unpin_region(fd, 0, PAGE) == 0);
        _exit(tenure_ashmem_purge_now(fd) == 1 ? 0 : 1);
    }
    CHECK(ending(child) == 0 && is_all(bytes, 0) && is_all(bytes + PAGE, 3));
    CHECK(ashmem_pin_region(fd, 0, 0) == ASHMEM_WAS_PURGED);
    CHECK(close(fd) == 0 && munmap(bytes, SIZE) == 0);
}

/* The kilobytes of this process's addresses that are mapped from files of this name. */
static long mapped_from(const char *name)
{
    char line[512];
    long found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        found += strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

/* A region that the program closes and unmaps is freed soon, and its descriptor number is free
 * for other files. */
static void closed(void)
{
    int fd = ashmem_create_region("closed", SIZE);
    CHECK(fd >= 0 && mapped_from("closed") > 0 && close(fd) == 0);
    int ms = 0;
    while (mapped_from("closed") > 0 && ms++ < 60000) {
        struct timespec wait = { 0, 1000000 };
        nanosleep(&wait, NULL);
    }
    CHECK(ms < 60000);
    int again = ashmem_create_region("again", PAGE);
    CHECK(again == fd && ashmem_get_size_region(again) == (int)PAGE);
    CHECK(ashmem_unpin_region(again, 0, 0) == 0 && tenure_ashmem_purge_now(again) == 1);
    CHECK(close(again) == 0);
}

int main(void)
{
    alone();
    errors();
    read_only();
    two_processes(PROT_READ | PROT_WRITE);
    two_processes(PROT_READ);
    forked();
    closed();
    return 0;
}
