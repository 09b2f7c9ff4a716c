/* malloc's family, mmap's family and prctl are no cancellation points: a thread with a pending
 * cancellation continues after them. */
#include "check.h"
#include <pthread.h>
#include <sys/prctl.h>

static void *body(void *argument) {
    size_t len = *(size_t *)argument;
    CHECK(pthread_cancel(pthread_self()) == 0);
    for (int n = 0; n < sweep(2, 6); n++) {
        char *block = malloc(len);
        memset(block, 1, len);
        free(block);
        block = calloc(1, len);
        CHECK(block[len - 1] == 0);
        block = realloc(block, 2 * len);
        memset(block, 1, 2 * len);
        free(block);
        char *mapping = map(len);
        memset(mapping, 1, len);
        CHECK(munmap(mapping, len) == 0);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    }
    return argument;
}

int main(void) {
    static size_t sizes[] = {200000, MIB, 9 * MIB, 34 * MIB};
    for (int round = 0; round < 3; round++) {
        pthread_t threads[4];
        for (int n = 0; n < 4; n++)
            CHECK(pthread_create(&threads[n], NULL, body, &sizes[n]) == 0);
        for (int n = 0; n < 4; n++) {
            void *result;
            CHECK(pthread_join(threads[n], &result) == 0);
            CHECK(result == &sizes[n]);
        }
    }
    puts("all went on");
    return 0;
}
