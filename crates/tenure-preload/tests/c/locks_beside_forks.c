/* A thread holds a lock of the program while it allocates, and a fork waits for that lock: in a
 * handler that was registered before all others, or, with an argument, through the C library's
 * streams. */
#include "check.h"
#include <stdatomic.h>

enum { FORKS = 40 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int over;
static char path[] = "long_lines";

static void take(void) {
    pthread_mutex_lock(&lock);
}

static void give(void) {
    pthread_mutex_unlock(&lock);
}

static void first_of_all(void) {
    pthread_atfork(take, give, give);
}

__attribute__((section(".preinit_array"), used)) static void (*at_start)(void) = first_of_all;

static void *allocate(void *argument) {
    while (!over) {
        take();
        char *block = malloc(MIB);
        block[0] = 1;
        CHECK(block = realloc(block, 3 * MIB));
        CHECK(block[0] == 1);
        free(block);
        char *mapping = map(MIB);
        CHECK(mapping[0] == 0);
        mapping[0] = 1;
        CHECK(munmap(mapping, MIB) == 0);
        give();
        /* A mutex is not fair. */
        usleep(100);
    }
    return argument;
}

static void *read_lines(void *argument) {
    while (!over) {
        FILE *file = fopen(path, "r");
        CHECK(file);
        char *line = NULL;
        size_t room = 0;
        while (!over && getline(&line, &room, file) > 0)
            CHECK(line[0] == 'a');
        free(line);
        fclose(file);
    }
    return argument;
}

static void *flush(void *argument) {
    while (!over)
        CHECK(fflush(NULL) == 0);
    return argument;
}

int main(int count, char **arguments) {
    (void)arguments;
    int streams = count > 1;
    if (streams) {
        FILE *file = fopen(path, "w");
        CHECK(file);
        for (size_t at = 0; at < 4 * MIB; at++)
            fputc(at % MIB == MIB - 1 ? '\n' : 'a', file);
        CHECK(fclose(file) == 0);
    }
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, streams ? read_lines : allocate, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, streams ? flush : allocate, NULL) == 0);
    time_t until = time(NULL) + 10;
    for (int n = 0; n < sweep(FORKS, 10 * FORKS) && time(NULL) < until; n++) {
        pid_t child = fork();
        if (child == 0) {
            char *block = malloc(MIB);
            block[0] = 1;
            free(block);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    over = 1;
    for (int n = 0; n < 2; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    puts("all forks came through");
    return 0;
}
