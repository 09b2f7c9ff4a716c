/* Threads, forks, signals, limits, filters and ends. */
#include "differ.h"
#include "map.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

/* Makes the next calls in a child, which then checks all objects. The parent makes the calls,
 * too. */
static void op_fork(size_t index, const unsigned long *a) {
    if (depth)
        return not_applicable("depth");
    int child = a[1] & 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        depth++;
        begin(index, "child");
        forget_missing();
        sweep();
        finish();
        run(index + 1, index + 1 + a[0]);
        begin(index, "child-ends");
        sweep();
        finish();
        _exit(0);
    }
    int status = -1;
    if (child > 0)
        waitpid(child, &status, 0);
    put("made", child > 0);
    put_hex("status", status);
}

struct part {
    size_t from, to;
};
static sem_t recorded;
static void *in_thread(void *argument) {
    struct part *part = argument;
    /* The record of the thread's creation comes first. */
    sem_wait(&recorded);
    run(part->from, part->to);
    return 0;
}
static void make_thread(size_t index, const unsigned long *a, int is_narrow) {
    static struct part part;
    if (depth > 1)
        return not_applicable("depth");
    pthread_attr_t how;
    pthread_t thread;
    pthread_attr_init(&how);
    if (is_narrow)
        pthread_attr_setstacksize(&how, PTHREAD_STACK_MIN);
    part = (struct part){index + 1, index + 1 + a[0]};
    generation++;
    sem_init(&recorded, 0, 0);
    int made = pthread_create(&thread, &how, in_thread, &part);
    put("made", made);
    finish();
    sem_post(&recorded);
    if (made == 0)
        pthread_join(thread, 0);
    generation++;
    pthread_attr_destroy(&how);
}
/* Makes the next calls in a thread, or in a thread with the smallest possible stack. */
static void op_thread(size_t index, const unsigned long *a) { make_thread(index, a, 0); }
static void op_narrow(size_t index, const unsigned long *a) { make_thread(index, a, 1); }

/* Threads at the same time: only the bytes are checked. */
static int wrong_bytes;
static void *racer(void *argument) {
    uint64_t seed = (uint64_t)argument;
    enum { BLOCKS = 8 };
    struct {
        unsigned char *at;
        size_t size;
        int mapped;
        unsigned char tag;
    } block[BLOCKS] = {0};
    for (int round = 0; round < 120; round++) {
        uint64_t draw = mix(seed, round);
        int n = draw % BLOCKS;
        size_t size = 1 + (draw >> 8) % (draw >> 40 & 3 ? 400000 : 3000000);
        if (!block[n].at) {
            block[n].mapped = draw >> 50 & 1;
            block[n].size = size;
            block[n].tag = draw >> 20;
            block[n].at = block[n].mapped
                              ? mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                          : draw >> 51 & 1 ? calloc(1, size)
                                           : malloc(size);
            if (!block[n].at || block[n].at == MAP_FAILED)
                __atomic_fetch_add(&wrong_bytes, 1000, __ATOMIC_RELAXED), block[n].at = 0;
            else {
                if (block[n].mapped || draw >> 51 & 1)
                    for (size_t at = 0; at < size; at += 509)
                        if (block[n].at[at])
                            __atomic_fetch_add(&wrong_bytes, 1, __ATOMIC_RELAXED);
                memset(block[n].at, block[n].tag, size);
            }
            continue;
        }
        for (size_t at = 0; at < block[n].size; at += 251)
            if (block[n].at[at] != block[n].tag)
                __atomic_fetch_add(&wrong_bytes, 1, __ATOMIC_RELAXED);
        if (block[n].mapped)
            munmap(block[n].at, block[n].size);
        else if (draw >> 52 & 1) {
            unsigned char *at = realloc(block[n].at, size);
            if (!at)
                continue;
            for (size_t byte = 0; byte < size && byte < block[n].size; byte += 251)
                if (at[byte] != block[n].tag)
                    __atomic_fetch_add(&wrong_bytes, 1, __ATOMIC_RELAXED);
            memset(at, block[n].tag, size);
            block[n].at = at, block[n].size = size;
            continue;
        } else
            free(block[n].at);
        block[n].at = 0;
        if ((draw >> 53) % 16 == 0 && depth == 0) {
            int child = fork();
            if (child == 0)
                _exit(3);
            int status = 0;
            if (child > 0 && (waitpid(child, &status, 0), status != 3 << 8))
                __atomic_fetch_add(&wrong_bytes, 100000, __ATOMIC_RELAXED);
        }
    }
    for (int n = 0; n < BLOCKS; n++)
        if (block[n].at && block[n].mapped)
            munmap(block[n].at, block[n].size);
        else
            free(block[n].at);
    return 0;
}
static void op_race(size_t index, const unsigned long *a) {
    (void)index;
    pthread_t threads[3];
    int made = 0;
    wrong_bytes = 0;
    for (; made < 3; made++)
        if (pthread_create(&threads[made], 0, racer, (void *)(a[0] + made)))
            break;
    put("threads", made);
    while (made)
        pthread_join(threads[--made], 0);
    put("wrong", wrong_bytes);
    generation++;
}

/* A handler that maps, unmaps or forks, at any moment. */
static volatile int handled, handler_wrong, handler_way;
static void handler(int number) {
    (void)number;
    int error = errno;
    size_t size = 70000 + handled % 7 * 100000;
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        handler_wrong++;
    else {
        handler_wrong += at[0] != 0 || at[size - 1] != 0 || at[size / 2] != 0;
        for (size_t n = 5; n < size; n += PAGE)
            at[n] = 0x77;
        if (handler_way == 1) {
            int child = fork();
            if (child == 0)
                _exit(at[5] == 0x77 ? 4 : 5);
            int status = 0;
            if (child > 0 && (waitpid(child, &status, 0), status != 4 << 8))
                handler_wrong += 1000;
        }
        handler_wrong += munmap(at, size) != 0;
    }
    handled++;
    errno = error;
}
/* which: 0 raised, 1 raised and forks, 2 by a timer while other calls are made */
static void op_signal(size_t index, const unsigned long *a) {
    (void)index;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGALRM, &action, 0);
    handled = handler_wrong = 0;
    handler_way = a[0] % 3;
    generation++;
    if (handler_way < 2)
        raise(SIGUSR1);
    else {
        struct itimerval often = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
        setitimer(ITIMER_REAL, &often, 0);
        for (int n = 0; n < 60; n++) {
            size_t size = 70000 + mix(a[1], n) % 600000;
            char *block = malloc(size);
            char *map = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            handler_wrong += map[size / 2] != 0;
            memset(block, n, size), memset(map, n, size);
            for (size_t at = 0; at < size; at += 997)
                handler_wrong += block[at] != (char)n || map[at] != (char)n;
            munmap(map, size);
            free(block);
        }
        setitimer(ITIMER_REAL, &off, 0);
    }
    put("wrong", handler_wrong);
}

/* Without this right RLIMIT_MEMLOCK holds for root, too. */
static void drop_right_to_lock(void) {
    struct {
        unsigned version;
        int thread;
    } head = {0x20080522, 0};
    struct {
        unsigned effective, permitted, inheritable;
    } sets[2];
    if (syscall(SYS_capget, &head, sets))
        return;
    sets[0].effective &= ~(1u << 14);
    syscall(SYS_capset, &head, sets);
}

static void op_limit(size_t index, const unsigned long *a) {
    (void)index;
    static const int which[] = {RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK, RLIMIT_STACK, RLIMIT_NOFILE};
    struct rlimit limit, after;
    getrlimit(which[a[0] % 5], &limit);
    limit.rlim_cur = a[1] < limit.rlim_max ? a[1] : limit.rlim_max;
    if (a[0] % 5 == 2)
        drop_right_to_lock();
    errno = 77;
    int done = setrlimit(which[a[0] % 5], &limit);
    put_result(done, errno);
    getrlimit(which[a[0] % 5], &after);
    put("set", after.rlim_cur);
    generation++;
}

/* From now on a call fails. Calls that glibc itself needs stay allowed. */
static void op_filter(size_t index, const unsigned long *a) {
    (void)index;
    static const int calls[] = {SYS_madvise, SYS_mremap, SYS_mlock, SYS_mincore, SYS_prctl, SYS_userfaultfd,
                                SYS_openat, SYS_sched_setaffinity, SYS_setpriority, SYS_clone3, SYS_mlock2, SYS_msync};
    unsigned number = calls[a[0] % (sizeof calls / sizeof *calls)];
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (a[1] & 1 ? EPERM : ENOSYS)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    if (number == SYS_openat)
        return not_applicable("the driver's own");
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    put("r", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

/* The number of the next descriptor, and the number of descriptors. */
static void op_descriptors(size_t index, const unsigned long *a) {
    (void)index, (void)a;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    put("next", fd);
    close(fd);
    int open_ones = 0;
    for (int n = 0; n < 256; n++)
        open_ones += fcntl(n, F_GETFD) >= 0;
    put("open", open_ones);
}

static pthread_key_t keys;
static int key_made;
/* Main's destructor or the last thread: the flag tells which of them comes second. */
static sem_t turn;
static int thread_first, have_thread;
static void at_thread_end(void *value) {
    if (have_thread && thread_first)
        sem_wait(&turn);
    /* Takes long, and uses memory: the process must not end meanwhile. */
    usleep(30000);
    char *at = malloc((size_t)value);
    memset(at, 1, (size_t)value);
    free(at);
    begin(call_count, "destructor");
    put("r", (long)value);
    finish();
    if (have_thread && !thread_first)
        sem_post(&turn);
}
static void *last(void *argument) {
    (void)argument;
    if (!thread_first)
        sem_wait(&turn);
    usleep(30000);
    begin(call_count, "last-thread");
    sweep();
    finish();
    if (thread_first)
        sem_post(&turn);
    return 0;
}
static void at_exit(void) {
    char *at = calloc(1, 400000);
    begin(call_count, "at-exit");
    put("r", at && !at[77777]);
    finish();
    free(at);
}
static void op_end(size_t index, const unsigned long *a) {
    (void)index;
    pthread_t thread;
    if (depth)
        return not_applicable("depth");
    finish();
    atexit(at_exit);
    if (!key_made)
        pthread_key_create(&keys, at_thread_end), key_made = 1;
    switch (a[0] % 6) {
    case 0:
        exit(7);
    case 1:
        _exit(8);
    case 2:
        pthread_setspecific(keys, (void *)300001);
        pthread_exit(0);
    case 3:
        pthread_setspecific(keys, (void *)500001);
        sem_init(&turn, 0, 0);
        thread_first = a[1] & 1;
        have_thread = !pthread_create(&thread, 0, last, 0);
        if (have_thread)
            pthread_detach(thread);
        pthread_exit(0);
    case 4:
        raise(SIGTERM);
        break;
    default:
        abort();
    }
}

const struct named process_operations[] = {
    {"fork", op_fork},   {"thread", op_thread}, {"narrow", op_narrow}, {"race", op_race},       {"signal", op_signal}, {"limit", op_limit},
    {"filter", op_filter}, {"descriptors", op_descriptors}, {"end", op_end}, {0, 0},
};
