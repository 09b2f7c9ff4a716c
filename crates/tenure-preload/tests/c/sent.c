/* The kernel sends from the program's pages. The socket's option was set before the program began. */
#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

static char *const ways[] = {"send", "sendto", "sendmsg", "sendmmsg", "number to", "number msg", "number mmsg"};
enum { WAYS = sizeof ways / sizeof *ways };

/* A pair of sockets with the option; the receiver takes little. */
static int connected(int pair[2]) {
    int taker = socket(AF_INET, SOCK_STREAM, 0), little = 8192, much = 8 << 20, on = 1;
    CHECK(taker >= 0);
    setsockopt(taker, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    if (bind(taker, (void *)&at, len) != 0 || getsockname(taker, (void *)&at, &len) != 0)
        return 0;
    CHECK(listen(taker, 1) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(pair[0], (void *)&at, len) != 0)
        return 0;
    pair[1] = accept(taker, NULL, NULL);
    CHECK(pair[1] >= 0 && close(taker) == 0);
    if (setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof much) != 0)
        setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
    return setsockopt(pair[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;
}

static long send_by(const char *way, int to, void *from, size_t len) {
    int flags = MSG_ZEROCOPY | MSG_DONTWAIT;
    struct iovec part = {from, len};
    struct mmsghdr many = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    long done = -2;
    if (!strcmp(way, "send"))
        return send(to, from, len, flags);
    if (!strcmp(way, "sendto"))
        return sendto(to, from, len, flags, NULL, 0);
    if (!strcmp(way, "sendmsg"))
        return sendmsg(to, &many.msg_hdr, flags);
    if (!strcmp(way, "number to"))
        return syscall(SYS_sendto, to, from, len, flags, NULL, 0);
    if (!strcmp(way, "number msg"))
        return syscall(SYS_sendmsg, to, &many.msg_hdr, flags);
    if (!strcmp(way, "sendmmsg"))
        done = sendmmsg(to, &many, 1, flags);
    else
        done = syscall(SYS_sendmmsg, to, &many, 1, flags);
    return done == 1 ? (long)many.msg_len : done;
}

static int sends(const char *way, int to, int from, int is_mapped) {
    /* glibc unmaps blocks of this size when they are freed. */
    size_t len = is_mapped ? 2 * MIB : 48 * MIB;
    char *at;
    /* A program that frees so much at first keeps more of it. */
    for (int n = 0; n < 5; n++) {
        at = is_mapped ? map(len) : malloc(len);
        *at = 1;
        if (is_mapped)
            CHECK(munmap(at, len) == 0);
        else
            free(at);
    }
    at = is_mapped ? map(len) : malloc(len);
    memset(at, 'A', len);
    long sent = send_by(way, to, at, MIB);
    CHECK(sent != -2);
    if (is_mapped)
        CHECK(munmap(at, len) == 0);
    else
        free(at);
    /* Several next owners of this size. */
    for (int n = 0; n < 4; n++)
        memset(is_mapped ? map(len) : malloc(len), 'B', len);
    static char out[65536];
    while (sent > 0) {
        long got = recv(from, out, sizeof out, 0);
        CHECK(got > 0);
        for (long n = 0; n < got; n++)
            CHECK(out[n] == 'A');
        sent -= got;
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count == 5)
        return sends(arguments[1], atoi(arguments[2]), atoi(arguments[3]), atoi(arguments[4]));
    for (int n = 0; n < 2 * WAYS; n++) {
        int pair[2], status;
        if (!connected(pair))
            break;
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            char to[16], from[16];
            sprintf(to, "%d", pair[0]);
            sprintf(from, "%d", pair[1]);
            execl("/proc/self/exe", "sent", ways[n / 2], to, from, n % 2 ? "1" : "0", NULL);
            _exit(2);
        }
        CHECK(waitpid(child, &status, 0) == child);
        if (status)
            fprintf(stderr, "%s, %s\n", ways[n / 2], n % 2 ? "mapped" : "allocated");
        CHECK(status == 0);
        close(pair[0]);
        close(pair[1]);
    }
    puts("sent");
    return 0;
}
