/* A daemon that serves requests over a Unix socket, from a cache without a size.
 *
 *     daemon /run/squares.sock
 *
 * A request is a line: a number, for which the daemon returns a table of 64 KiB, or "stats". The cache
 * keeps as much as fits beside the other programs of the machine, so it needs no setting. SIGTERM and
 * SIGINT end the daemon. */
#define _GNU_SOURCE /* ppoll */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <tenure.h>
#include <unistd.h>

enum { TABLE = 64 << 10 };

static volatile sig_atomic_t ended;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

/* Makes the table of a number. It stands for work that takes long. 0: made. */
static int make_table(void *arg, struct tenure_made *into) {
    const uint64_t *number = arg;
    unsigned char *table = tenure_made_resize(into, TABLE);
    if (!table) return -1;
    for (size_t at = 0; at < TABLE; at++) table[at] = (unsigned char)(*number * at >> 3);
    return 0;
}

/* Writes all of it, unless the reader has gone. */
static void write_all(int to, const void *bytes, size_t len) {
    const char *from = bytes;
    while (len > 0) {
        ssize_t written = write(to, from, len);
        if (written <= 0) return;
        from += written;
        len -= (size_t)written;
    }
}

static void write_stats(int to, struct tenure_cache *cache) {
    struct tenure_cache_stats stats;
    char line[200];
    if (tenure_cache_stats(cache, &stats, sizeof stats) < 0) return;
    int len = snprintf(line, sizeof line, "hits %llu misses %llu purged %llu\n", (unsigned long long)stats.hits,
                       (unsigned long long)stats.misses, (unsigned long long)stats.purged_values);
    write_all(to, line, (size_t)len);
}

static void answer(int client, struct tenure_cache *cache) {
    char line[64] = "";
    const struct timeval patience = {1, 0};
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    ssize_t len = recv(client, line, sizeof line - 1, 0); /* a request comes in one piece */
    if (len <= 0) return;
    if (strcmp(line, "stats\n") == 0) {
        write_stats(client, cache);
        return;
    }
    uint64_t number = strtoull(line, NULL, 10);
    const void *table;
    size_t table_len;
    struct tenure_value *value =
        tenure_cache_get_or_insert(cache, &number, sizeof number, make_table, &number, &table, &table_len);
    if (!value) {
        fprintf(stderr, "daemon: %s\n", tenure_last_error());
        return;
    }
    write_all(client, table, table_len); /* the bytes stay until the value is released */
    tenure_value_release(value);
}

static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return errno = ENAMETOOLONG, -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 64) < 0) return -1;
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: daemon SOCKET\n"), 2;
    /* The two signals come only while ppoll waits, so none is missed. */
    struct sigaction action = {.sa_handler = end};
    sigset_t both, before;
    sigemptyset(&both);
    sigaddset(&both, SIGTERM);
    sigaddset(&both, SIGINT);
    sigprocmask(SIG_BLOCK, &both, &before);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a client that has gone is an error of write */

    struct tenure_cache *cache = tenure_cache_new(NULL);
    if (!cache) return fprintf(stderr, "daemon: %s\n", tenure_last_error()), 1;
    int server = listen_at(argv[1]);
    if (server < 0) return perror(argv[1]), 1;
    while (!ended) {
        struct pollfd ready = {.fd = server, .events = POLLIN};
        if (ppoll(&ready, 1, NULL, &before) <= 0) continue;
        int client = accept4(server, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) continue;
        answer(client, cache);
        close(client);
    }
    write_stats(STDOUT_FILENO, cache);
    tenure_cache_free(cache);
    return unlink(argv[1]) < 0;
}
