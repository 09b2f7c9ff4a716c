/* A program with its own malloc has one thread until it makes another, so it may enter a user
 * namespace. */
#include "check.h"
#include <dirent.h>

static char heap[64 * 1024 * 1024];
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *malloc(size_t len) {
    pthread_mutex_lock(&lock);
    void *at = heap + used;
    used += (len + 15) & ~(size_t)15;
    pthread_mutex_unlock(&lock);
    return used <= sizeof heap ? at : NULL;
}
void free(void *at) { (void)at; }
void *calloc(size_t count, size_t len) { return malloc(count * len); }
void *realloc(void *at, size_t len) {
    void *next = malloc(len);
    if (at && next)
        memcpy(next, at, len);
    return next;
}

static void *body(void *argument) { return argument; }

/* The number of threads whose names begin so. */
static int threads(const char *name) {
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    int count = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        int file = task->d_name[0] == '.' ? -1 : open(path, O_RDONLY);
        if (file < 0)
            continue;
        count += read(file, comm, sizeof comm - 1) > 0 && !strncmp(comm, name, strlen(name));
        close(file);
    }
    closedir(tasks);
    return count;
}

int main(int count, char **arguments) {
    CHECK(munmap(map(8 * MIB), 8 * MIB) == 0);
    sleep_ms(100);
    CHECK(threads("") == 1);
    if (count > 1 && !strcmp(arguments[1], "threaded")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, body, NULL) == 0 && pthread_join(thread, NULL) == 0);
        /* A new thread has its creator's name for a moment, so one count of one is enough. */
        int n = 0;
        while (threads("tenure-keeper") != 1 && n++ < 3000)
            sleep_ms(10);
        CHECK(n < 3000);
        puts("threaded");
        return 0;
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int entered = unshare(CLONE_NEWUSER);
        printf("%d %d\n", entered, entered ? errno : 0);
        fflush(stdout);
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);
    int entered = unshare(CLONE_NEWUSER);
    printf("%d %d\n", entered, entered ? errno : 0);
    return 0;
}
