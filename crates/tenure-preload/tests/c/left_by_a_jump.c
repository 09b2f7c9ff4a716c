/* A handler leaves mmap and munmap by siglongjmp, also the first one after a library was loaded; then
 * another thread maps, and forks. */
#include "check.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/time.h>

static sigjmp_buf back;
static volatile sig_atomic_t armed;
static volatile int jumps;
static atomic_int over;

static void leave(int signal) {
    (void)signal;
    if (!armed)
        return;
    armed = 0;
    jumps++;
    siglongjmp(back, 1);
}

static void use(size_t len) {
    char *mapping = map(len);
    CHECK(mapping[0] == 0 && mapping[len - 1] == 0);
    mapping[0] = 1;
    CHECK(munmap(mapping, len) == 0);
}

static void *beside(void *argument) {
    while (!over)
        use(MIB);
    for (int n = 0; n < 5; n++) {
        pid_t child = fork();
        if (child == 0) {
            use(MIB);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    return argument;
}

static void every(int microseconds) {
    struct itimerval time = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    int before = descriptors();
    struct sigaction action = {.sa_handler = leave};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    /* Only this thread takes them. */
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, beside, NULL) == 0);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    every(1000);
    volatile size_t turn = 0;
    time_t until = time(NULL) + 10;
    while (jumps < sweep(500, 5000) && time(NULL) < until) {
        static void *library;
        CHECK(!library || dlclose(library) == 0);
        CHECK((library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL)) != NULL);
        if (sigsetjmp(back, 1) == 0) {
            armed = 1;
            for (;;) {
                turn++;
                char *mapping = mmap(NULL, (1 + turn % 16) * 64 * KIB, RW, ANON, -1, 0);
                munmap(mapping, (1 + turn % 16) * 64 * KIB);
            }
        }
    }
    every(0);
    /* tenure has three of its own. */
    CHECK(descriptors() <= before + 3);
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    puts("went on");
    return 0;
}
