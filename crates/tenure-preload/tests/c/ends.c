/* The process ends with the last of the program's threads, also if the main thread ended before:
 * by pthread_exit (also in a child that another thread forked), thrd_exit, or a cancellation. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <threads.h>

static pthread_t main_thread;

static void use(int n) {
    char *at = malloc(8 * MIB);
    CHECK(at);
    fill(at, 4096, n);
    CHECK(is_filled(at, 4096, n));
    free(at);
}

/* Takes long: the process must live until the main thread's own values are destroyed. */
static void destroy(void *value) {
    (void)value;
    for (int n = 0; n < 10; n++)
        usleep(30000);
    puts("the last thread is done");
    fflush(stdout);
}

/* From now on no thread can be made. */
static void allow_no_thread(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {5, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void *last(void *cancelled) {
    if (cancelled)
        CHECK(pthread_cancel(main_thread) == 0);
    for (int n = 0; n < 20; n++) {
        use(n);
        usleep(10000);
    }
    puts("the last thread is done");
    fflush(stdout);
    return NULL;
}

static void *forks(void *unused) {
    pthread_t thread;
    int status;
    (void)unused;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        use(1);
        CHECK(pthread_create(&thread, NULL, last, NULL) == 0);
        pthread_exit(NULL);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return NULL;
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "pthread_exit";
    pthread_t thread;
    main_thread = pthread_self();
    /* Makes the library start its thread, if it starts one. */
    for (int n = 0; n < 40; n++)
        use(n);
    sleep_ms(50);
    use(0);
    sleep_ms(50);
    if (!strcmp(way, "in a child")) {
        CHECK(pthread_create(&thread, NULL, forks, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        return 0;
    }
    if (!strcmp(way, "destructor") || !strcmp(way, "no thread")) {
        pthread_key_t key;
        CHECK(pthread_key_create(&key, destroy) == 0);
        CHECK(pthread_setspecific(key, &key) == 0);
        if (!strcmp(way, "no thread"))
            allow_no_thread();
        pthread_exit(NULL);
    }
    int cancelled = !strcmp(way, "cancelled");
    CHECK(pthread_create(&thread, NULL, last, cancelled ? &main_thread : NULL) == 0);
    while (cancelled)
        pause();
    if (!strcmp(way, "thrd_exit"))
        thrd_exit(7);
    pthread_exit(NULL);
}
