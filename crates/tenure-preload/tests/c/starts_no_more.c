/* Once the system has refused the program a thread, the library starts its threads no more: also
 * where its own start had failed before. */
#include "check.h"
#include <dlfcn.h>

typedef void *thread_body(void *);
typedef int creation(pthread_t *, const pthread_attr_t *, thread_body *, void *);

/* The library behind the launcher's, which creates all threads. */
struct watch {
    pthread_t program;
    /* What the program's own threads run. Null: it has not begun. */
    thread_body *own;
    /* Threads of tenure's that were to start its others, and those of them that have tried to. */
    volatile int starts, tried;
};

#ifdef BENEATH
struct watch watch;

static struct {
    thread_body *body;
    void *argument;
} start;

static void *tries(void *argument) {
    void *result = start.body(start.argument);
    watch.tried++;
    (void)argument;
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, thread_body *body, void *argument) {
    creation *next = (creation *)dlsym(RTLD_NEXT, "pthread_create");
    if (!watch.own || body == watch.own)
        return next(thread, how, body, argument);
    /* There is no room for any other thread of tenure's. */
    if (!pthread_equal(pthread_self(), watch.program))
        return EAGAIN;
    start.body = body;
    start.argument = argument;
    watch.starts++;
    return next(thread, how, tries, NULL);
}
#else

static struct watch *watch;
static pthread_barrier_t end;

static void *waits(void *argument) {
    pthread_barrier_wait(&end);
    return argument;
}

/* Each round lets the library start its threads. */
static void work(int rounds, int until) {
    for (int round = 0; round < rounds && watch->starts < until; round++) {
        char *block = malloc(5 * MIB);
        memset(block, 1, 5 * MIB);
        free(block);
        /* A start that has begun fails before the next round. */
        for (int n = 0; watch->tried < watch->starts && n < 60000; n++)
            usleep(1000);
    }
}

int main(int count, char **arguments) {
    pthread_t thread, refused;
    pthread_attr_t huge;
    static struct watch none;
    watch = dlsym(RTLD_DEFAULT, "watch");
    if (!watch)
        watch = &none;
    watch->program = pthread_self();
    watch->own = waits;
    pthread_barrier_init(&end, NULL, 2);
    /* With a second thread the library's threads may start at any allocation. */
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    work(20, 1);
    CHECK(watch->tried == watch->starts && (watch->starts > 0 || count < 2 || strcmp(arguments[1], "starts")));

    CHECK(pthread_attr_init(&huge) == 0);
    CHECK(pthread_attr_setstacksize(&huge, (size_t)1 << 62) == 0);
    CHECK(pthread_create(&refused, &huge, waits, NULL) == EAGAIN);
    int before = watch->starts;
    work(20, before + 1);
    CHECK(watch->starts == before);

    pthread_barrier_wait(&end);
    CHECK(pthread_join(thread, NULL) == 0);
    puts("started no more");
    return 0;
}
#endif
