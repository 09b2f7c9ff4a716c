/* When munmap returns, the addresses are free: a touch raises SIGSEGV, MAP_FIXED_NOREPLACE
 * succeeds, and a new mapping there keeps the bytes that are written to it. The mapping of a
 * file does not hold the file any more. */
#include "check.h"
#include <linux/memfd.h>

static void stale(size_t len) {
    char *at = map(len);
    memset(at, 1, len);
    /* Half of it: a whole run of the pool stays readable, as the documentation says. */
    CHECK(munmap(at + len / 2, len / 2) == 0);
    CHECK(touch(at + len / 2) == SIGSEGV);
    CHECK(touch(at + len - 1) == SIGSEGV);
    CHECK(at[len / 2 - 1] == 1);
    char *again = mmap(at + len / 2, len / 2, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(again == at + len / 2);
    CHECK(is_zero(again, len / 2));
    fill(again, len / 2, 3);
    sleep_ms(60); /* the teardown of the old memory must not touch the new */
    CHECK(is_filled(again, len / 2, 3));
    CHECK(mmap(again, 4096, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
    CHECK(munmap(at, len) == 0);
}

static int is_mapped(const char *name) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, name) && strstr(line, "memfd:");
    CHECK(fclose(maps) == 0);
    return found;
}

static void sealed_at_once(size_t len) {
    int fd = memfd_create("deferral", MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, len) == 0);
    char *at = mmap(NULL, len, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 1, len);
    CHECK(munmap(at, len) == 0);
    CHECK(touch(at) == SIGSEGV);
    CHECK(!is_mapped("deferral"));
    /* EBUSY while anything maps it, and while the kernel has a page of it in hand itself. */
    for (int n = 0; fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0; n++) {
        CHECK(errno == EBUSY && n < 1000);
        sleep_ms(10);
    }
    close(fd);
}

static void replaced(size_t len) {
    char *at = map(len);
    memset(at, 1, len);
    CHECK(mmap(at, len, RW, ANON | MAP_FIXED, -1, 0) == at);
    CHECK(is_zero(at, len));
    fill(at, len, 9);
    CHECK(mmap(at, len, PROT_NONE, ANON | MAP_FIXED, -1, 0) == at);
    CHECK(touch(at) == SIGSEGV);
    CHECK(munmap(at, len) == 0);
}

/* The pool does not serve this mapping: it is not for reading and writing. */
static void whole(size_t len) {
    char *at = mmap(NULL, len, PROT_NONE, ANON, -1, 0);
    CHECK(at != MAP_FAILED && mprotect(at, len, RW) == 0);
    memset(at, 1, len);
    CHECK(munmap(at, len) == 0);
    for (size_t n = 0; n < len; n += len / 8)
        CHECK(touch(at + n) == SIGSEGV);
    CHECK(mmap(at, len, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == at);
    CHECK(is_zero(at, len) && munmap(at, len) == 0);
}

int main(void) {
    static const size_t sizes[] = {128 * KIB, 2 * MIB, 64 * MIB};
    for (size_t n = 0; n < 3; n++) {
        stale(sizes[n]);
        sealed_at_once(sizes[n]);
        replaced(sizes[n]);
        whole(sizes[n]);
    }
    puts("gone at once");
    return 0;
}
