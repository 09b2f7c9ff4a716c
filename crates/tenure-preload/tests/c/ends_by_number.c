/* Threads end by the system call `exit`, of which the C library knows nothing. The process ends with
 * the last of them, with the status that the kernel gives it, and without handlers. They call
 * `syscall`, or make the call themselves. */
#include "check.h"

static const char *way;
static int by_instruction;

static int is(const char *name) { return !strcmp(way, name); }

static void at_exit(void) { CHECK(write(1, "a handler\n", 10) == 10); }

/* Makes the library start its threads. */
static void work(void) {
    for (int n = 0; n < 100; n++) {
        char *at = malloc(2 * MIB);
        CHECK(at);
        fill(at, 2 * MIB, n);
        free(at);
        if (n % 10 == 0)
            sleep_ms(5);
    }
}

static void leave(int status) {
#ifdef __x86_64__
    if (by_instruction)
        __asm__ volatile("syscall" : : "a"(SYS_exit), "D"(status) : "rcx", "r11", "memory");
#endif
    syscall(SYS_exit, status);
    CHECK(!"a thread has come back from its end");
}

static void *body(void *argument) {
    work();
    if (!is("main last"))
        wait_for_main(); /* The status is that of the thread that ends last. */
    if (is("both") || is("other"))
        leave(3);
    return argument;
}

static void *brief(void *argument) {
    (void)argument;
    leave(9);
    return NULL;
}

static void run(void) {
    pthread_t thread;
    CHECK(atexit(at_exit) == 0);
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    if (is("main last"))
        CHECK(pthread_join(thread, NULL) == 0);
    if (is("before")) {
        /* A join waits for the kernel's word alone. */
        CHECK(pthread_create(&thread, NULL, brief, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    if (is("other") || is("before"))
        pthread_exit(NULL);
    leave(5);
}

int main(int count, char **arguments) {
    way = count > 1 ? arguments[1] : "main";
    by_instruction = count > 2 && !strcmp(arguments[2], "by instruction");
    if (count > 2 && !by_instruction) {
        int status;
        work();
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child)
            run();
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        printf("the child: %d\n", WEXITSTATUS(status));
        return 0;
    }
    run();
}
