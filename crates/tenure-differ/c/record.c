/* Records, and the contents and the kernel's view of objects. No function here allocates. */
#include "differ.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>

static char line[16384];
static size_t used;
static int quiet_until_end;
int peek;

static void add(char c) {
    if (used < sizeof line - 2)
        line[used++] = c;
}
static void add_text(const char *text) {
    while (*text)
        add(*text++);
}
static void add_number(unsigned long value, unsigned base) {
    char digits[24];
    int n = 0;
    do
        digits[n++] = "0123456789abcdef"[value % base];
    while (value /= base);
    while (n)
        add(digits[--n]);
}

void begin(size_t index, const char *name) {
    used = 0;
    for (int n = 0; n < depth; n++)
        add_text("f.");
    add_number(index, 10);
    add(' ');
    add_text(name);
}
static void key(const char *name) {
    add(' ');
    add_text(name);
    add('=');
}
void put(const char *name, long value) {
    key(name);
    if (value < 0)
        add('-');
    add_number(value < 0 ? -(unsigned long)value : (unsigned long)value, 10);
}
void put_hex(const char *name, unsigned long value) {
    key(name);
    add_number(value, 16);
}
void put_text(const char *name, const char *value) {
    key(name);
    add_text(value);
}
void put_result(long value, int error) {
    put("r", value);
    put("e", error);
}
void not_applicable(const char *why) { put_text("na", why); }
void finish(void) {
    if (!used || quiet_until_end)
        return;
    add('\n');
    if (syscall(SYS_write, 1, line, used) < 0)
        _exit(93);
    used = 0;
}

uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a ^ (b * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Faults in guarded code come back here. Any other fault is recorded and ends the process. */
static sigjmp_buf back;
static volatile int guarded;
static void fault(int number) {
    if (guarded)
        siglongjmp(back, 1);
    add_text(" FAULT=");
    add_number(number, 10);
    finish();
    signal(number, SIG_DFL);
}
static void guard_all(void) {
    static int done;
    if (done)
        return;
    done = 1;
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
}

static size_t least_size(size_t a, size_t b) { return a < b ? a : b; }

/* Writes the words of from..to that are read later. In a heap block all bytes are the object's. */
void fill(int slot, size_t from, size_t to) {
    struct object *o = &objects[slot];
    o->version++;
    size_t first = (from + o->stride - 1) / o->stride * o->stride;
    for (size_t at = first; at + 8 <= to; at += o->stride) {
        uint64_t word = mix(slot * 1000003ul + o->version, at);
        memcpy(o->at + at, &word, 8);
    }
    /* The last bytes, where a neighbour begins. */
    if (to >= 8 && to - 8 >= from) {
        uint64_t word = mix(slot * 1000003ul + o->version, to);
        memcpy(o->at + to - 8, &word, 8);
    }
}

uint64_t hash_bytes(const void *at, size_t len) {
    uint64_t sum = len;
    const char *bytes = at;
    for (size_t n = 0; n + 8 <= len; n += 8) {
        uint64_t word;
        memcpy(&word, bytes + n, 8);
        if (word)
            sum = mix(sum ^ n, word);
    }
    for (size_t n = len & ~7ul; n < len; n++)
        sum = mix(sum, (unsigned char)bytes[n]);
    return sum;
}

/* Sums the readable pages. A page that cannot be read also changes the sum. */
static volatile size_t guarded_at;
static uint64_t hash_map(int slot, size_t limit) {
    static uint64_t sum;
    struct object *o = &objects[slot];
    guard_all();
    sum = 0;
    size_t step = limit > (8ul << 20) ? 512 : limit > (256ul << 10) ? 64 : 8;
    guarded_at = 0;
    if (sigsetjmp(back, 0)) {
        sum = mix(sum, 0xdead ^ guarded_at);
        guarded_at++;
    }
    guarded = 1;
    for (; guarded_at < limit / PAGE; guarded_at++) {
        if (page_state[slot][guarded_at] != MAPPED)
            continue;
        const char *page = o->at + guarded_at * PAGE;
        for (size_t n = 0; n < PAGE; n += step) {
            uint64_t word = *(const volatile uint64_t *)(page + n);
            if (word)
                sum = mix(sum ^ (guarded_at * PAGE + n), word);
        }
    }
    guarded = 0;
    return sum;
}

uint64_t hash_of(int slot, size_t limit) {
    struct object *o = &objects[slot];
    if (o->kind == MAP)
        return hash_map(slot, least_size(limit, o->size));
    uint64_t sum = 0;
    limit = least_size(limit, o->size);
    for (size_t at = 0; at + 8 <= limit; at += o->stride) {
        uint64_t word;
        memcpy(&word, o->at + at, 8);
        sum = mix(sum ^ at, word);
    }
    if (limit == o->size && limit >= 8)
        sum = mix(sum, hash_bytes(o->at + limit - 8, 8));
    return sum;
}
void put_contents(int slot) { put_hex("h", hash_of(slot, objects[slot].size)); }

size_t write_pages(int slot, size_t from, size_t to) {
    static size_t faults;
    struct object *o = &objects[slot];
    guard_all();
    o->version++;
    faults = 0;
    guarded_at = from / PAGE;
    if (sigsetjmp(back, 0)) {
        faults++;
        guarded_at++;
    }
    guarded = 1;
    size_t step = to - from > (4ul << 20) ? 512 : 64;
    for (; guarded_at * PAGE < to; guarded_at++) {
        if (page_state[slot][guarded_at] != MAPPED)
            continue;
        for (size_t n = 0; n < PAGE; n += step)
            *(volatile uint64_t *)(o->at + guarded_at * PAGE + n) =
                mix(slot * 1000003ul + o->version, guarded_at * PAGE + n);
    }
    guarded = 0;
    return faults;
}

static char text[1 << 20];
static size_t read_file(const char *path) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    if (fd < 0)
        return 0;
    for (;;) {
        long got = syscall(SYS_read, fd, text + len, sizeof text - 1 - len);
        if (got <= 0)
            break;
        len += got;
    }
    syscall(SYS_close, fd);
    text[len] = 0;
    return len;
}

static unsigned long hex(const char **at) {
    unsigned long value = 0;
    for (;; (*at)++) {
        char c = **at;
        if (c >= '0' && c <= '9')
            value = value * 16 + (c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value * 16 + (c - 'a' + 10);
        else
            return value;
    }
}

/* The flags of a mapping that come from the program's calls. */
static unsigned flags_of(const char *at) {
    static const char *const names[] = {"lo", "dc", "wf", "nh", "mg", "io", "sr", "rr", "gd", "um", "lf"};
    unsigned found = 0;
    for (; *at && *at != '\n'; at++)
        for (unsigned n = 0; n < sizeof names / sizeof *names; n++)
            if (at[0] == ' ' && at[1] == names[n][0] && at[2] == names[n][1])
                found |= 1u << n;
    return found;
}

/* One number for a page's permissions and flags. Equal numbers in a row are written once. */
static unsigned char seen[MOST_PAGES];
static unsigned short flags_seen[MOST_PAGES];
void put_mapping(int slot, int deep) {
    struct object *o = &objects[slot];
    unsigned long start = (unsigned long)o->at, end = start + o->size;
    size_t pages = o->size / PAGE;
    memset(seen, 0, pages);
    if (deep)
        memset(flags_seen, 0, pages * sizeof *flags_seen);
    if (!read_file(deep ? "/proc/self/smaps" : "/proc/self/maps"))
        return;
    unsigned long from = 0, to = 0;
    for (const char *at = text; *at;) {
        const char *next = at;
        while (*next && *next != '\n')
            next++;
        if ((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f')) {
            from = hex(&at), at++, to = hex(&at);
            unsigned char mode = 1 + (at[1] == 'r') + 2 * (at[2] == 'w') + 4 * (at[3] == 'x') + 8 * (at[4] == 's');
            for (unsigned long page = from < start ? start : from; page < to && page < end; page += PAGE)
                seen[(page - start) / PAGE] = mode;
        } else if (deep && !strncmp(at, "VmFlags:", 8)) {
            unsigned flags = flags_of(at + 8);
            for (unsigned long page = from < start ? start : from; page < to && page < end; page += PAGE)
                flags_seen[(page - start) / PAGE] = flags;
        }
        at = *next ? next + 1 : next;
    }
    key("m");
    for (size_t n = 0; n < pages;) {
        size_t more = n;
        unsigned char state = page_state[slot][n];
        while (more < pages && page_state[slot][more] == state &&
               (state != MAPPED || (seen[more] == seen[n] && (!deep || flags_seen[more] == flags_seen[n]))))
            more++;
        if (n)
            add(',');
        if (state == MAPPED) {
            unsigned char mode = seen[n];
            if (!mode)
                add('X');
            else {
                mode--;
                add(mode & 1 ? 'r' : '-'), add(mode & 2 ? 'w' : '-'), add(mode & 4 ? 'x' : '-');
                add(mode & 8 ? 's' : 'p');
            }
            if (deep && flags_seen[n])
                add('/'), add_number(flags_seen[n], 16);
        } else
            add('.');
        add('*'), add_number(more - n, 10);
        n = more;
    }
}

long status_kib(const char *name) {
    read_file("/proc/self/status");
    size_t len = strlen(name);
    for (const char *at = text; *at; at++)
        if ((at == text || at[-1] == '\n') && !strncmp(at, name, len) && at[len] == ':') {
            long value = 0;
            for (at += len; *at && *at != '\n'; at++)
                if (*at >= '0' && *at <= '9')
                    value = value * 10 + (*at - '0');
            return value;
        }
    return -1;
}

/* Checks that all remaining objects have their contents. */
void sweep(void) {
    uint64_t sum = 0;
    size_t live = 0;
    for (int n = 0; n < SLOTS; n++) {
        if (objects[n].kind == NONE)
            continue;
        live++;
        uint64_t one = hash_of(n, objects[n].size);
        char name[4] = {'h', '0' + n / 10, '0' + n % 10, 0};
        put_hex(name, one & 0xffff);
        sum = mix(sum, one);
    }
    put("live", live);
    put_hex("all", sum);
}
