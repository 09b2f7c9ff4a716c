/* A callback of dl_iterate_phdr waits for a thread that frees, resizes, unmaps or forks just after a
 * library was loaded. */
#include "check.h"
#include <dlfcn.h>
#include <link.h>

/* The program's own functions are not used before it has begun. */
static int is_ready;

int pthread_mutex_trylock(pthread_mutex_t *mutex) {
    int (*next)(pthread_mutex_t *) =
        (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_trylock");
    CHECK(is_ready && next);
    return next(mutex);
}

static pthread_barrier_t begun;
static pthread_mutex_t wanted = PTHREAD_MUTEX_INITIALIZER;
static int forks_inside;

static void fork_once(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
}

static int waits(struct dl_phdr_info *about, size_t bytes, void *data) {
    (void)about, (void)bytes, (void)data;
    pthread_barrier_wait(&begun);
    if (forks_inside)
        fork_once();
    CHECK(pthread_mutex_lock(&wanted) == 0);
    CHECK(pthread_mutex_unlock(&wanted) == 0);
    return 1;
}

static void *looks(void *data) {
    dl_iterate_phdr(waits, NULL);
    return data;
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    is_ready = 1;
    CHECK(pthread_mutex_trylock(&wanted) == 0 && pthread_mutex_unlock(&wanted) == 0);
    const char *way = arguments[2];
    char *block = malloc(2 * MIB), *resized = malloc(2 * MIB);
    char *mapped = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(block && resized && mapped != MAP_FAILED);
    fill(block, 2 * MIB, 1);
    fill(resized, 2 * MIB, 2);
    fill(mapped, 64 * MIB, 3);
    free(malloc(2 * MIB));
    CHECK(dlopen(arguments[1], RTLD_NOW));
    forks_inside = !strcmp(way, "inside");
    pthread_t looking;
    CHECK(pthread_barrier_init(&begun, NULL, 2) == 0);
    CHECK(pthread_mutex_lock(&wanted) == 0);
    CHECK(pthread_create(&looking, NULL, looks, NULL) == 0);
    pthread_barrier_wait(&begun);
    if (!strcmp(way, "fork"))
        fork_once();
    free(block);
    resized = realloc(resized, 5 * MIB);
    CHECK(resized && is_filled(resized, 2 * MIB, 2));
    CHECK(munmap(mapped, 64 * MIB) == 0);
    CHECK(pthread_mutex_unlock(&wanted) == 0);
    CHECK(pthread_join(looking, NULL) == 0);
    puts("done");
    return 0;
}
