/* A program with one thread gives up rights for the calling thread. No other thread may keep
 * them. */
#include "check.h"
#include <dirent.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

static unsigned seed = 7;

/* Allocates memory of many sizes, checks it and frees it. */
static void work(void) {
    enum { BLOCKS = 40 };
    char *blocks[BLOCKS] = {0};
    size_t lens[BLOCKS] = {0};
    for (int n = sweep(60, 300); n > 0; n--) {
        int i = rand_r(&seed) % BLOCKS;
        if (blocks[i]) {
            CHECK(is_filled(blocks[i], lens[i], i));
            free(blocks[i]);
        }
        lens[i] = ((size_t)rand_r(&seed) % (3 * MIB)) & ~(size_t)7;
        blocks[i] = malloc(lens[i]);
        CHECK(blocks[i]);
        fill(blocks[i], lens[i], i);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    char *mapped = map(16 * MIB);
    fill(mapped, 16 * MIB, 99);
    CHECK(munmap(mapped, 16 * MIB) == 0);
}

/* Counts the threads, those with a capability, and those without a filter. */
static void tasks(int *threads, int *able, int *unfiltered) {
    *threads = *able = *unfiltered = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[300];
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        if (!status)
            continue;
        ++*threads;
        while (fgets(line, sizeof line, status)) {
            unsigned long long set;
            *able += sscanf(line, "CapEff: %llx", &set) == 1 && set != 0;
            *unfiltered += sscanf(line, "Seccomp: %llx", &set) == 1 && set == 0;
        }
        fclose(status);
    }
    closedir(tasks);
}

static void drop_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}};
    CHECK(syscall(SYS_capset, &header, none) == 0);
}

/* A filter that ends the process for any new thread or process. */
static void filter(int by_prctl) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_prctl)
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    else
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

static void *nothing(void *argument) { return argument; }

/* Makes the library start its threads, and does not wait for them. */
static void begin_a_start(void) {
    pthread_t thread;
    int threads, able, unfiltered;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    /* The kernel counts a thread for a moment after it was joined. */
    for (int n = 0; n < 3000; n++) {
        tasks(&threads, &able, &unfiltered);
        if (threads == 1)
            break;
        usleep(1000);
    }
    free(malloc(8 * MIB));
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "capset";
    int threads, able, unfiltered;
    if (getenv("START_FIRST"))
        begin_a_start();
    else
        work();
    /* If the test wants tenure's threads first, this waits for them. */
    for (int n = 0; getenv("THREADS_FIRST") && n < 3000; n++) {
        tasks(&threads, &able, &unfiltered);
        if (threads > 1)
            break;
        work();
        CHECK(n < 2999);
    }
    if (!strcmp(way, "capset"))
        drop_capabilities();
    else if (!strcmp(way, "prctl"))
        filter(1);
    else if (!strcmp(way, "seccomp"))
        filter(0);
    else if (!strcmp(way, "user"))
        printf("%d\n", unshare(CLONE_NEWUSER));
    else if (!strcmp(way, "thread"))
        printf("%d\n", unshare(CLONE_THREAD));
    else
        CHECK(!"a known way");
    tasks(&threads, &able, &unfiltered);
    /* After a filter no thread starts again. After other calls one may, with the remaining
     * rights. */
    if (!strcmp(way, "prctl") || !strcmp(way, "seccomp"))
        printf("%s: %d\n", way, threads);
    if (!strcmp(way, "capset"))
        printf("%s: %d\n", way, able);
    for (int n = 0; n < 3; n++) {
        work();
        tasks(&threads, &able, &unfiltered);
        if (!strcmp(way, "capset"))
            CHECK(able == 0);
        if (!strcmp(way, "prctl") || !strcmp(way, "seccomp"))
            CHECK(threads == 1 && unfiltered == 0);
    }
    errno = 0;
    CHECK(syscall(-1L) == -1 && errno == ENOSYS);
    CHECK(syscall(SYS_getpid) == getpid());
    return 0;
}
