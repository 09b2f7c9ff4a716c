/* Once the system has refused the program a thread, the library starts its threads no more: also
 * where its own start had failed before. */
#include "check.h"
#include <dlfcn.h>

typedef void *thread_body(void *);
typedef int creation(pthread_t *, const pthread_attr_t *, thread_body *, void *);

static pthread_t program;
static pthread_barrier_t end;
/* Threads of the library that were to start its others, and those of them that have tried to. */
static volatile int starts, tried;
static struct {
    thread_body *body;
    void *argument;
} start;

static void *waits(void *argument) {
    pthread_barrier_wait(&end);
    return argument;
}

static void *tries(void *argument) {
    void *result = start.body(start.argument);
    tried++;
    (void)argument;
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, thread_body *body, void *argument) {
    /* There is no room for any other thread of the library. */
    if (!pthread_equal(pthread_self(), program))
        return EAGAIN;
    creation *next = (creation *)dlsym(RTLD_NEXT, "pthread_create");
    if (body == waits)
        return next(thread, how, body, argument);
    start.body = body;
    start.argument = argument;
    starts++;
    return next(thread, how, tries, NULL);
}

/* Each round lets the library start its threads. */
static void work(int rounds, int until) {
    for (int round = 0; round < rounds && starts < until; round++) {
        char *block = malloc(5 * MIB);
        memset(block, 1, 5 * MIB);
        free(block);
        /* A start that has begun fails before the next round. */
        for (int n = 0; tried < starts && n < 60000; n++)
            usleep(1000);
    }
}

int main(int count, char **arguments) {
    pthread_t thread, refused;
    pthread_attr_t huge;
    program = pthread_self();
    pthread_barrier_init(&end, NULL, 2);
    /* With a second thread the library's threads may start at any allocation. */
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    work(20, 1);
    CHECK(tried == starts && (starts > 0 || count < 2 || strcmp(arguments[1], "starts")));

    CHECK(pthread_attr_init(&huge) == 0);
    CHECK(pthread_attr_setstacksize(&huge, (size_t)1 << 62) == 0);
    CHECK(pthread_create(&refused, &huge, waits, NULL) == EAGAIN);
    int before = starts;
    work(20, before + 1);
    CHECK(starts == before);

    pthread_barrier_wait(&end);
    CHECK(pthread_join(thread, NULL) == 0);
    puts("started no more");
    return 0;
}
