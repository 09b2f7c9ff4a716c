/* Calls that fail without the library fail in this way with it, too: the test compares the
 * output. */
#include "check.h"

static void say(const char *what, long result) {
    printf("%s: %s %d\n", what, result == -1 ? "failed" : "done", result == -1 ? errno : 0);
}

int main(void) {
    size_t len = 4 * MIB;
    char *at = map(len);
    memset(at, 1, len);
    char *guard = mmap(NULL, 3 * len, PROT_NONE, ANON, -1, 0);
    say("munmap unaligned", munmap(at + 1, len));
    say("munmap nothing", munmap(at, 0));
    say("munmap past the end", munmap((void *)-4096L, len));
    say("munmap wrapping", munmap(at, (size_t)-4096));
    say("munmap a hole", (munmap(guard + len, len), munmap(guard, 3 * len)));
    say("mremap unaligned", (long)mremap(at + 1, len, 2 * len, MREMAP_MAYMOVE));
    say("mremap to nothing", (long)mremap(at, len, 0, MREMAP_MAYMOVE));
    say("mremap of nothing", (long)mremap(at, 0, len, MREMAP_MAYMOVE));
    say("mremap with strange flags", (long)mremap(at, len, 2 * len, 64));
    say("mremap fixed, not movable", (long)mremap(at, len, len, MREMAP_FIXED, guard));
    say("mremap onto itself", (long)mremap(at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, at + 4096));
    say("mremap of too much", (long)mremap(at, len, (size_t)1 << 60, MREMAP_MAYMOVE));
    say("mmap of nothing", (long)mmap(NULL, 0, RW, ANON, -1, 0));
    say("mmap of too much", (long)mmap(NULL, (size_t)1 << 60, RW, ANON, -1, 0));
    say("mmap of no file", (long)mmap(NULL, len, RW, MAP_PRIVATE, -1, 0));
    say("mmap neither private nor shared", (long)mmap(NULL, len, RW, MAP_ANONYMOUS, -1, 0));
    say("mmap at no page", (long)mmap(at + 1, len, RW, ANON | MAP_FIXED, -1, 0));
    say("mprotect unaligned", mprotect(at + 1, 4096, PROT_READ));
    say("mprotect strange", mprotect(at, 4096, 0x7000));
    say("madvise strange", madvise(at, 4096, 12345));
    say("madvise unaligned", madvise(at + 1, 4096, MADV_DONTNEED));
    printf("posix_madvise strange: %d\n", posix_madvise(at, 4096, 99));
    say("mlock of a hole", mlock(guard, 4096));
    say("mlock2 strange", mlock2(at, 4096, 8));
    errno = 0;
    volatile size_t huge = SIZE_MAX - 100;
    CHECK(!malloc(huge) && errno == ENOMEM);
    CHECK(!malloc((size_t)1 << 62) && errno == ENOMEM);
    CHECK(!calloc(huge / 2, 3) && errno == ENOMEM);
    char *block = malloc(len);
    memset(block, 5, len);
    errno = 0;
    CHECK(!reallocarray(block, huge / 2, 3) && errno == ENOMEM);
    CHECK(!realloc(block, huge) && errno == ENOMEM);
    CHECK(block[0] == 5 && block[len - 1] == 5);
    void *to = (void *)1;
    CHECK(posix_memalign(&to, 3, len) == EINVAL);
    CHECK(posix_memalign(&to, 64, huge) == ENOMEM);
    /* Calls that succeed leave errno alone. */
    errno = 77;
    free(block);
    block = malloc(len);
    block = realloc(block, 2 * len);
    free(block);
    block = mmap(NULL, len, RW, ANON, -1, 0);
    munmap(block, len);
    CHECK(errno == 77);
    CHECK(is_filled("", 0, 0) && at[0] == 1 && at[len - 1] == 1);
    return 0;
}
