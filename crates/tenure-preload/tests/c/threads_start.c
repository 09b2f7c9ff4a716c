/* The library starts its threads once, and they make no heap of the C library, which would take
 * 64 MiB of addresses. */
#include "check.h"
#include <dlfcn.h>

typedef int creation(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static volatile int created;

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *argument) {
    creation *next = (creation *)dlsym(RTLD_NEXT, "pthread_create");
    created++;
    return next(thread, how, body, argument);
}

static pthread_barrier_t end;

static void *waits(void *argument) {
    pthread_barrier_wait(&end);
    return argument;
}

static int heaps(void) {
    static char text[1 << 16];
    FILE *memory = fmemopen(text, sizeof text, "w");
    CHECK(memory && malloc_info(0, memory) == 0 && fclose(memory) == 0);
    int count = 0;
    for (char *at = text; (at = strstr(at, "<heap nr=")); at++)
        count++;
    return count;
}

static void child(void) {
    pthread_t thread;
    created = 0;
    pthread_barrier_init(&end, NULL, 2);
    /* With a second thread the library's threads may start at any allocation. */
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    for (int round = 0; round < 20; round++) {
        char *block = malloc(5 * MIB), *mapped = map(5 * MIB);
        memset(block, 1, 5 * MIB);
        memset(mapped, 1, 5 * MIB);
        free(block);
        CHECK(munmap(mapped, 5 * MIB) == 0);
        for (int n = 0; n < 20000; n++)
            free(malloc(100));
    }
    CHECK(heaps() == 1);
    /* The program's, one that starts the library's two, and as many again where some failed. */
    CHECK(created < 12);
    pthread_barrier_wait(&end);
    CHECK(pthread_join(thread, NULL) == 0);
    exit(0);
}

int main(void) {
    for (int n = 0; n < sweep(6, 16); n++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            child();
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    }
    puts("started");
    return 0;
}
