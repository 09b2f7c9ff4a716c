/* Reads the plan and makes its calls. */
#include "differ.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>

struct call *calls;
size_t call_count;
int depth;
static char *plan;

static void read_plan(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = lseek(fd, 0, SEEK_END);
    if (fd < 0 || size < 0)
        _exit(90);
    /* By raw calls, so that the driver's own memory does not come from the hooks. */
    plan = (char *)syscall(SYS_mmap, 0, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    size_t most = size / 2 + 1;
    calls = (struct call *)syscall(SYS_mmap, 0, most * sizeof *calls, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    close(fd);
    for (char *at = plan, *end = plan + size; at < end;) {
        struct call *call = &calls[call_count++];
        call->name = at;
        while (at < end && *at != ' ' && *at != '\n')
            at++;
        for (int n = 0; at < end && *at == ' '; n++) {
            *at++ = 0;
            unsigned long value = 0;
            for (; at < end && *at != ' ' && *at != '\n'; at++)
                value = value * 10 + (*at - '0');
            call->a[n % ARGUMENTS] = value;
        }
        if (at < end)
            *at++ = 0;
    }
}

static operation *find(const char *name) {
    const struct named *all[] = {heap_operations, map_operations, process_operations, more_operations};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        for (const struct named *one = all[n]; one->name; one++)
            if (!strcmp(one->name, name))
                return one->make;
    return 0;
}

void run(size_t from, size_t to) {
    for (size_t n = from; n < to && n < call_count; n++) {
        operation *make = find(calls[n].name);
        begin(n, calls[n].name);
        peek = calls[n].a[ARGUMENTS - 1] != 0;
        if (make)
            make(n, calls[n].a);
        else
            not_applicable("unknown");
        finish();
        /* A thread or a child has made these calls. */
        if (!strcmp(calls[n].name, "thread") || !strcmp(calls[n].name, "narrow"))
            n += calls[n].a[0];
    }
}

static void make_file(void) {
    int fd = syscall(SYS_memfd_create, "differ", 1);
    char path[40];
    static char bytes[PAGE];
    for (size_t at = 0; at < FILE_BYTES; at += PAGE) {
        memset(bytes, 1 + at / PAGE % 250, PAGE);
        if (write(fd, bytes, FILE_BYTES - at < PAGE ? FILE_BYTES - at : PAGE) < 0)
            _exit(91);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    dup3(fd, FILE_FD, O_CLOEXEC);
    dup3(reader, FILE_FD + 1, O_CLOEXEC);
    close(fd);
    close(reader);
}

int main(int count, char **arguments) {
    if (count < 2)
        return 92;
    struct rlimit no_core = {0, 0};
    syscall(SYS_prlimit64, 0, RLIMIT_CORE, &no_core, 0);
    read_plan(arguments[1]);
    make_file();
    find_operators();
    run(0, call_count);
    begin(call_count, "done");
    sweep();
    finish();
    return 0;
}
