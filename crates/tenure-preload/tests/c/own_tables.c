/* Children and threads that have their own descriptor tables close all descriptors and use
 * memory. The number of descriptors that the library opens must not grow. */
#include "check.h"

/* More than the library has open at once, and fewer than if each use left one open. */
enum { TIMES = 60, MANY = 40 };

static pthread_barrier_t turn;

static void use(void) {
    char *mapping = map(40 * MIB);
    mapping[0] = 1;
    CHECK(munmap(mapping, 40 * MIB) == 0);
    char *volatile block = malloc(2 * MIB);
    block[0] = 1;
    free(block);
}

static int open_ones(void) {
    int count = 0;
    for (int number = 0; number < 1024; number++)
        count += fcntl(number, F_GETFD) >= 0;
    return count;
}

static void *body(void *argument) {
    (void)argument;
    CHECK(syscall(SYS_close_range, 3, ~0U, 2 /* CLOSE_RANGE_UNSHARE */) == 0);
    for (int n = 0; n < TIMES; n++) {
        pthread_barrier_wait(&turn);
        use();
        pthread_barrier_wait(&turn);
    }
    CHECK(open_ones() < MANY);
    return NULL;
}

int main(void) {
    use();
    int before = open_ones();
    for (int n = 0; n < TIMES; n++) {
        pid_t child = vfork();
        if (child == 0) {
            syscall(SYS_close_range, 3, ~0U, 0);
            use();
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, NULL, 0) == child);
        use();
    }
    CHECK(open_ones() < before + MANY);
    CHECK(pthread_barrier_init(&turn, NULL, 2) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    for (int n = 0; n < TIMES; n++) {
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
        use();
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(open_ones() < before + MANY);
    puts("few are open");
    return 0;
}
