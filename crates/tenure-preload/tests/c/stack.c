/* How much of the caller's stack the calls take: a thread may have 16 KiB of it, and a signal's handler that makes such a
   call, too, may come in the midst of one. Prints the most, in bytes. */
#include "check.h"

enum { ROOM = 256 << 10, CALLS = 7, LEAVES = 4096 };
static unsigned char *stack;
static void *block;
static volatile size_t most;

static void prepare(int call, size_t len) {
    if (call == 0 || call == 4)
        memset(block = map(len), 1, len);
    if (call == 2 || call == 5)
        memset(block = malloc(len), 1, len);
}
static void make(int call, size_t len) {
    switch (call) {
    case 0:
        CHECK(munmap(block, len) == 0);
        break;
    case 1:
        block = malloc(len);
        break;
    case 2:
        free(block);
        break;
    case 3:
        block = calloc(1, len);
        break;
    case 4:
        CHECK(mmap(block, len, RW, ANON | MAP_FIXED, -1, 0) == block);
        break;
    case 5:
        block = realloc(block, 2 * len);
        break;
    default:
        block = map(len);
    }
    CHECK(block);
}
static void clean_up(int call, size_t len) {
    if (call == 4 || call == 6)
        CHECK(munmap(block, len) == 0);
    if (call == 1 || call == 3 || call == 5)
        free(block);
}

/* What the call has written below this frame. */
__attribute__((noinline)) static void measure(int call, size_t len) {
    unsigned char *here = __builtin_frame_address(0), *lowest = stack + LEAVES;
    /* Down to where memset's own frame may be. */
    memset(lowest, 0xa5, here - lowest - 512);
    make(call, len);
    while (*lowest == 0xa5)
        lowest++;
    if ((size_t)(here - lowest) > most)
        most = here - lowest;
}

static void *body(void *unused) {
    (void)unused;
    /* First what the loader does at a call's first time. */
    for (int round = 0; round < 3; round++) {
        for (int call = 0; call < CALLS; call++)
            for (size_t len = 256 * KIB; len <= 40 * MIB; len *= 160) {
                prepare(call, len);
                if (round == 0)
                    make(call, len);
                else
                    measure(call, len);
                clean_up(call, len);
            }
        /* The worker is there from the second round on. */
        sleep_ms(300);
    }
    return NULL;
}

int main(void) {
    CHECK((stack = map(ROOM)) != NULL);
    pthread_attr_t how;
    pthread_t thread;
    CHECK(pthread_attr_init(&how) == 0 && pthread_attr_setstack(&how, stack, ROOM) == 0);
    CHECK(pthread_create(&thread, &how, body, NULL) == 0 && pthread_join(thread, NULL) == 0);
    printf("%zu\n", most);
    return 0;
}
