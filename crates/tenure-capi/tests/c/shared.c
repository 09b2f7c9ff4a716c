/* Volatile memory that processes share: workers of fork, a descriptor over a socket, and a
 * process that is killed. */
#include "check.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#define CHUNK ((size_t)64 << 10)
#define CHUNKS ((size_t)8)

static void sleep_ms(long ms)
{
    struct timespec time = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&time, NULL);
}

static struct tenure_shared_stats now(struct tenure_shared *s)
{
    struct tenure_shared_stats stats;
    CHECK(tenure_shared_stats(s, &stats, sizeof stats) == 0);
    return stats;
}

static void is_all(struct tenure_shared *s, size_t chunk, unsigned char byte)
{
    const unsigned char *bytes = tenure_shared_addr(s, chunk);
    for (size_t i = 0; i < CHUNK; i++)
        CHECK(bytes[i] == byte);
}

/* Makes a chunk that a pin has given this caller to make. */
static void make(struct tenure_shared *s, size_t chunk, unsigned char byte)
{
    is_all(s, chunk, 0);
    memset(tenure_shared_addr(s, chunk), byte, CHUNK);
    CHECK(tenure_shared_finish(s, chunk) == 0);
}

static void ranges(void)
{
    struct tenure_shared *s = tenure_shared_new(CHUNKS * CHUNK - 1, NULL);
    CHECK(s);
    CHECK(tenure_shared_len(s) == CHUNKS * CHUNK && tenure_shared_chunks(s) == CHUNKS);
    CHECK(tenure_shared_chunk_size(s) == CHUNK);
    CHECK((char *)tenure_shared_addr(s, 1) == (char *)tenure_shared_addr(s, 0) + CHUNK);
    CHECK(tenure_shared_is_watched(s) == (tenure_detection() == TENURE_DETECTION_USERFAULTFD));

    unsigned char states[CHUNKS];
    CHECK(tenure_shared_pin(s, 0, CHUNKS, states) == 1);
    for (size_t i = 0; i < CHUNKS; i++) {
        CHECK(states[i] == TENURE_SHARED_FRESH);
        make(s, i, (unsigned char)(i + 1));
    }
    CHECK(tenure_shared_pin(s, 0, CHUNKS, states) == 0); /* pins are counted */
    CHECK(tenure_shared_unpin(s, 0, CHUNKS) == 0);
    CHECK(tenure_shared_purge_now(s, 0, CHUNKS) == 0);
    CHECK(now(s).pinned == CHUNKS && now(s).intact == CHUNKS);
    CHECK(tenure_shared_unpin(s, 0, CHUNKS) == 0);
    FAILS(tenure_shared_unpin(s, 3, 1), EINVAL, "not pinned");

    CHECK(tenure_shared_purge_now(s, 2, 3) == 3);
    CHECK(tenure_shared_read(s, 2) == 1 && tenure_shared_read(s, 1) == 0);
    is_all(s, 1, 2);
    CHECK(tenure_shared_unpin(s, 1, 1) == 0);
    CHECK(tenure_shared_pin(s, 0, CHUNKS, states) == 1);
    for (size_t i = 0; i < CHUNKS; i++) {
        CHECK(states[i] == (i >= 2 && i < 5 ? TENURE_SHARED_PURGED : TENURE_SHARED_INTACT));
        if (states[i] != TENURE_SHARED_INTACT)
            make(s, i, (unsigned char)(i + 1));
        is_all(s, i, (unsigned char)(i + 1));
    }
    CHECK(tenure_shared_unpin(s, 0, CHUNKS) == 0);

    /* In place, by the only process that pins it. */
    CHECK(tenure_shared_remake(s, 0) == 0);
    *(unsigned char *)tenure_shared_addr(s, 0) = 99;
    CHECK(tenure_shared_pin(s, 0, 1, states) == 2 && states[0] == TENURE_SHARED_BEING_MADE);
    FAILS(tenure_shared_wait(s, 0, 1), ETIMEDOUT, "being made");
    CHECK(tenure_shared_finish(s, 0) == 0);
    CHECK(tenure_shared_wait(s, 0, -1) == 0);
    FAILS(tenure_shared_remake(s, 0), EBUSY, "pinned by another");
    CHECK(tenure_shared_unpin(s, 0, 1) == 0 && tenure_shared_unpin(s, 0, 1) == 0);
    FAILS(tenure_shared_unpin(s, 0, 1), EINVAL, "not pinned");

    /* Given up, and purged. */
    CHECK(tenure_shared_purge_now(s, 0, 2) == 2);
    CHECK(tenure_shared_pin(s, 0, 1, NULL) == 1);
    CHECK(tenure_shared_abandon(s, 0) == 0);
    FAILS(tenure_shared_finish(s, 0), EINVAL, "not being made");
    CHECK(tenure_shared_unpin(s, 0, 1) == 0);
    CHECK(tenure_shared_pin(s, 0, 2, states) == 1);
    CHECK(states[0] == TENURE_SHARED_HALF_MADE && states[1] == TENURE_SHARED_PURGED);
    CHECK(tenure_shared_unpin(s, 0, 2) == 0);
    CHECK(tenure_shared_pin(s, 0, 2, states) == 1);
    CHECK(states[0] == TENURE_SHARED_HALF_MADE && states[1] == TENURE_SHARED_HALF_MADE);
    CHECK(tenure_shared_unpin(s, 0, 2) == 0);

    CHECK(tenure_shared_priority(s, 0) == TENURE_PRIORITY_DEFAULT);
    CHECK(tenure_shared_set_priority(s, 0, TENURE_PRIORITY_LOWEST) == 0);
    CHECK(tenure_shared_priority(s, 0) == TENURE_PRIORITY_LOWEST);
    CHECK(now(s).processes == 1 && now(s).chunks == CHUNKS && now(s).chunk_bytes == CHUNK);
    tenure_shared_free(s);
}

static void errors(void)
{
    struct tenure_shared_opts opts = TENURE_SHARED_OPTS_INIT;
    opts.chunk_size = 5000;
    FAILS_NULL(tenure_shared_new(MIB, &opts), EINVAL, "power of two");
    opts.chunk_size = PAGE;
    opts.processes = 2000;
    FAILS_NULL(tenure_shared_new(MIB, &opts), EINVAL, "processes is 2000");
    opts.processes = 3;
    struct tenure_shared *s = tenure_shared_new(MIB, &opts);
    CHECK(s && tenure_shared_chunks(s) == MIB / PAGE);
    opts.reserved = 1;
    FAILS_NULL(tenure_shared_new(MIB, &opts), E2BIG, "reserved");
    FAILS_NULL(tenure_shared_new(0, NULL), EINVAL, "length");
    FAILS_NULL(tenure_shared_open(-1), EBADF, "no descriptor");
    FAILS_NULL(tenure_shared_open(12345), EBADF, "copied");
    FAILS_NULL(tenure_shared_addr(s, MIB), EINVAL, "none");
    FAILS(tenure_shared_pin(s, 0, 2, NULL), EINVAL, "NULL");
    FAILS(tenure_shared_pin(s, 0, 0, NULL), EINVAL, "none");
    FAILS(tenure_shared_pin(s, 1, (size_t)-1, NULL), EINVAL, "none");
    FAILS(tenure_shared_pin(NULL, 0, 1, NULL), EINVAL, "NULL");
    FAILS(tenure_shared_finish(s, 0), EINVAL, "not being made");
    FAILS(tenure_shared_set_priority(s, 0, 8), EINVAL, "priority");
    FAILS(tenure_shared_purge_now(s, 256, 1), EINVAL, "none");
    FAILS(tenure_shared_receive(-1), EBADF, "no descriptor");
    CHECK(tenure_shared_len(NULL) == 0);

    struct tenure_shared *second = tenure_shared_open(tenure_shared_fd(s));
    struct tenure_shared *third = tenure_shared_open_read_only(tenure_shared_fd(s));
    CHECK(second && third);
    FAILS_NULL(tenure_shared_open(tenure_shared_fd(s)), EUSERS, "3 processes");
    FAILS(tenure_shared_pin(third, 0, 1, NULL), EACCES, "read only");
    CHECK(tenure_shared_pin(second, 0, 1, NULL) == 1);
    memset(tenure_shared_addr(second, 0), 7, PAGE);
    CHECK(tenure_shared_finish(second, 0) == 0);
    CHECK(tenure_shared_pin(third, 0, 1, NULL) == 0);
    CHECK(page_is(tenure_shared_addr(third, 0), 7));
    tenure_shared_free(third); /* its pin ends */
    tenure_shared_free(second);
    CHECK(tenure_shared_purge_now(s, 0, 1) == 1);
    tenure_shared_free(s);
    tenure_shared_free(NULL);
}

/* A callback makes chunks: at a pin, and at a touch without a pin. */
static int refills, freed, fails;

static int refill(void *arg, size_t chunk, void *bytes, size_t len)
{
    CHECK(arg == &refills && len == CHUNK && *(unsigned char *)bytes == 0);
    refills++;
    memset(bytes, (int)chunk + 1, len);
    return fails;
}

static void free_arg(void *arg)
{
    CHECK(arg == &refills);
    freed++;
}

static void refilled(void)
{
    struct tenure_shared_opts opts = TENURE_SHARED_OPTS_INIT;
    opts.refill = refill;
    opts.arg = &refills;
    opts.free_arg = free_arg;
    FAILS_NULL(tenure_shared_new(0, &opts), EINVAL, "length");
    CHECK(freed == 0);
    struct tenure_shared *s = tenure_shared_new(CHUNKS * CHUNK, &opts);
    CHECK(s);
    unsigned char states[2];
    CHECK(tenure_shared_pin(s, 0, 2, states) == 0 && refills == 2);
    is_all(s, 1, 2);
    CHECK(tenure_shared_unpin(s, 0, 2) == 0);
    FAILS(tenure_shared_remake(s, 0), EOPNOTSUPP, "refill");
    FAILS(tenure_shared_set_refill(s, refill, &refills, free_arg), EBUSY, "has a refill");
    FAILS(tenure_shared_set_refill(s, NULL, NULL, NULL), EINVAL, "NULL");
    if (tenure_shared_is_watched(s)) {
        CHECK(tenure_shared_purge_now(s, 0, 2) == 2);
        is_all(s, 0, 1);
        is_all(s, 5, 6);
        CHECK(refills == 4);
    }
    struct tenure_shared *other = tenure_shared_open(tenure_shared_fd(s));
    CHECK(other);
    FAILS(tenure_shared_pin(other, 7, 1, states), EACCES, "no refill function");
    CHECK(tenure_shared_set_refill(other, refill, &refills, free_arg) == 0);
    fails = 1;
    FAILS(tenure_shared_pin(other, 7, 1, states), EIO, "returned 1");
    fails = 0;
    CHECK(tenure_shared_pin(other, 7, 1, states) == 0);
    is_all(s, 7, 8);
    CHECK(freed == 0);
    tenure_shared_free(other);
    CHECK(freed == 1);
    tenure_shared_free(s);
    CHECK(freed == 2);

    s = tenure_shared_new(CHUNK, NULL);
    FAILS(tenure_shared_set_refill(s, refill, &refills, free_arg), EOPNOTSUPP, "without");
    CHECK(freed == 2);
    tenure_shared_free(s);
}

/* Two workers make all chunks between them, each chunk once. */
static int worker(struct tenure_shared *s)
{
    int made = 0;
    for (size_t i = 0; i < CHUNKS; i++) {
        int found = tenure_shared_pin(s, i, 1, NULL);
        if (found == 2)
            found = tenure_shared_wait(s, i, -1);
        if (found == 1) {
            made++;
            make(s, i, (unsigned char)(i + 1));
        } else
            CHECK(found == 0);
        is_all(s, i, (unsigned char)(i + 1));
        CHECK(tenure_shared_unpin(s, i, 1) == 0);
    }
    return made;
}

static void workers(void)
{
    struct tenure_shared *s = tenure_shared_new(CHUNKS * CHUNK, NULL);
    CHECK(s);
    pid_t pair[2];
    for (int i = 0; i < 2; i++)
        if ((pair[i] = fork()) == 0)
            _exit(worker(s));
    CHECK(ending(pair[0]) + ending(pair[1]) == (int)CHUNKS);
    CHECK(worker(s) == 0 && now(s).processes == 1);
    tenure_shared_free(s);
}

/* Another program has only a socket. */
static void over_a_socket(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        int fd = tenure_shared_receive(pair[1]);
        CHECK(fd >= 0);
        struct tenure_shared *s = tenure_shared_open(fd);
        CHECK(s && close(fd) == 0);
        CHECK(tenure_shared_read(s, 3) == 0);
        is_all(s, 3, 4);
        CHECK(write(pair[1], "p", 1) == 1);
        char byte;
        CHECK(read(pair[1], &byte, 1) == 1); /* killed here, with the pin */
        _exit(1);
    }
    close(pair[1]);
    struct tenure_shared *s = tenure_shared_new(CHUNKS * CHUNK, NULL);
    CHECK(s && tenure_shared_pin(s, 3, 2, (unsigned char[2]){ 0, 0 }) == 1);
    make(s, 3, 4);
    make(s, 4, 5);
    CHECK(tenure_shared_unpin(s, 3, 2) == 0);
    CHECK(tenure_shared_send(s, pair[0]) == 0);
    char byte;
    CHECK(read(pair[0], &byte, 1) == 1);
    CHECK(tenure_shared_purge_now(s, 3, 2) == 1); /* the other process has 3 pinned */
    CHECK(tenure_shared_read(s, 3) == 0);
    is_all(s, 3, 4);
    CHECK(tenure_shared_unpin(s, 3, 1) == 0);
    CHECK(kill(child, SIGKILL) == 0 && ending(child) == 128 + SIGKILL);
    int ms = 0;
    while (tenure_shared_purge_now(s, 3, 1) == 0 && ms++ < 60000)
        sleep_ms(1);
    CHECK(ms < 60000);
    FAILS(tenure_shared_receive(pair[0]), EPROTO, "no descriptor");
    close(pair[0]);
    tenure_shared_free(s);
}

/* A process is killed while it makes a chunk. The process that waits for the chunk makes it. */
static void killed_maker(void)
{
    struct tenure_shared *s = tenure_shared_new(CHUNK, NULL);
    int told[2];
    CHECK(s && pipe(told) == 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        CHECK(tenure_shared_start_worker() == 0 && tenure_shared_start_worker() == 0);
        CHECK(tenure_shared_pin(s, 0, 1, NULL) == 1);
        memset(tenure_shared_addr(s, 0), 9, CHUNK / 2);
        CHECK(write(told[1], "m", 1) == 1);
        pause();
        _exit(1);
    }
    char byte;
    CHECK(read(told[0], &byte, 1) == 1);
    unsigned char state;
    CHECK(tenure_shared_pin(s, 0, 1, &state) == 2 && state == TENURE_SHARED_BEING_MADE);
    FAILS(tenure_shared_wait(s, 0, 100), ETIMEDOUT, "being made");
    CHECK(kill(child, SIGKILL) == 0 && ending(child) == 128 + SIGKILL);
    CHECK(tenure_shared_wait(s, 0, 2000) == 1);
    make(s, 0, 1);
    CHECK(tenure_shared_unpin(s, 0, 1) == 0);
    CHECK(now(s).buried == 1 && now(s).pinned == 0);
    close(told[0]);
    close(told[1]);
    tenure_shared_free(s);
}

int main(void)
{
    ranges();
    errors();
    refilled();
    workers();
    over_a_socket();
    killed_maker();
    return 0;
}
