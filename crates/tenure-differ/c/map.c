/* mmap's family, on parts of objects that the child may use. */
#include "differ.h"
#include "map.h"
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

size_t generation;
struct object objects[SLOTS];
unsigned char page_state[SLOTS][MOST_PAGES];

static size_t rounded(size_t n) { return (n + PAGE - 1) & -PAGE; }

/* The child must not touch holes that other mappings may have taken since. */
static void refresh(int slot) {
    struct object *o = &objects[slot];
    if (o->made == generation)
        return;
    for (size_t n = 0; n < o->size / PAGE; n++)
        if (page_state[slot][n] == HOLE)
            page_state[slot][n] = UNKNOWN;
    o->made = generation;
}
static void set_pages(int slot, size_t from, size_t len, int state) {
    if (state == HOLE)
        refresh(slot);
    memset(page_state[slot] + from / PAGE, state, rounded(len) / PAGE);
}

/* Whether from..from+len is the child's, mapped or a fresh hole. A range that wraps is allowed,
 * because the kernel refuses it. */
static int is_ours(int slot, size_t from, size_t len) {
    struct object *o = &objects[slot];
    if (o->kind != MAP || from >= o->size)
        return 0;
    if (len > -(1ul << 40))
        return 1;
    size_t end = rounded(from + len);
    if (len > o->size || end > o->size)
        return 0;
    refresh(slot);
    for (size_t n = from / PAGE; n < end / PAGE; n++)
        if (page_state[slot][n] == UNKNOWN)
            return 0;
    return 1;
}
static int all_are(int slot, size_t from, size_t len, int state) {
    for (size_t n = from / PAGE; n < rounded(from + len) / PAGE; n++)
        if (page_state[slot][n] != state)
            return 0;
    return 1;
}

static int descriptor(unsigned long kind) {
    switch (kind % 4) {
    case 0:
        return -1;
    case 1:
        return FILE_FD;
    case 2:
        return FILE_FD + 1;
    default:
        return 999;
    }
}

static void new_object(int slot, char *at, size_t len) {
    objects[slot] = (struct object){MAP, at, rounded(len), 8, 0, objects[slot].version, 0, 0};
    generation++;
    objects[slot].made = generation;
    set_pages(slot, 0, len, MAPPED);
}

/* slot, length, protection, flags, kind of file, offset, hint: slot + 1, and its page from bit 8 on; bit 40: odd */
static void op_mmap(size_t index, const unsigned long *a) {
    (void)index;
    int slot = a[0] % SLOTS, flags = a[3], fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
    size_t len = a[1];
    char *hint = 0;
    int in = a[6] & 255 ? (int)((a[6] & 255) - 1) % SLOTS : -1;
    size_t at = (a[6] >> 8 & 0xffffff) * PAGE;
    if (in >= 0) {
        if (!is_ours(in, at, len) && !(len == 0 && is_ours(in, at, PAGE)))
            return not_applicable("range");
        hint = objects[in].at + at + (a[6] >> 40 & 1);
    } else if (fixed)
        return not_applicable("nowhere");
    if (!fixed && objects[slot].kind != NONE)
        return not_applicable("taken");
    int was_free = in >= 0 && len && len <= objects[in].size && all_are(in, at, len, HOLE);
    errno = 77;
    char *made = mmap(hint, len, a[2], flags, descriptor(a[4]), a[5]);
    put("e", errno);
    if (made == MAP_FAILED) {
        put("r", -1);
        if (fixed && in >= 0 && errno != EEXIST && len && len <= objects[in].size)
            set_pages(in, at, len, UNKNOWN);
    } else if (fixed || (was_free && made == hint)) {
        put_text("r", made == objects[in].at + at ? "there" : "elsewhere");
        set_pages(in, at, len, MAPPED);
        slot = in;
    } else {
        put_text("r", "new");
        put("misaligned", (size_t)made % PAGE);
        put("low", (size_t)made >> 32 == 0);
        if (rounded(len) > MOST_PAGES * PAGE) {
            put("unmap", munmap(made, len));
            generation++;
            return;
        }
        if (was_free && hint == (char *)((size_t)hint & -PAGE))
            put_text("hint", "ignored");
        new_object(slot, made, len);
    }
    if (objects[slot].kind == MAP) {
        put_mapping(slot, peek || flags & (MAP_LOCKED | MAP_GROWSDOWN));
        if (peek)
            put_contents(slot);
    }
}

static void op_munmap(size_t index, const unsigned long *a) {
    (void)index;
    int slot = a[0] % SLOTS;
    if (!is_ours(slot, a[1], a[2]))
        return not_applicable("range");
    errno = 77;
    int done = munmap(objects[slot].at + a[1], a[2]);
    put_result(done, errno);
    if (done == 0) {
        given_back += a[2];
        set_pages(slot, a[1], a[2], HOLE);
    }
    put_mapping(slot, 0);
    if (peek)
        put_contents(slot);
}
/* Unmaps the rest of an object, mapping by mapping. */
static void op_drop(size_t index, const unsigned long *a) {
    (void)index;
    int slot = a[0] % SLOTS, failed = 0;
    struct object *o = &objects[slot];
    if (o->kind != MAP)
        return not_applicable("kind");
    if (peek)
        put_contents(slot);
    for (size_t n = 0, pages = o->size / PAGE; n < pages; n++) {
        size_t first = n;
        while (n < pages && page_state[slot][n] == MAPPED)
            n++;
        if (n > first)
            failed += munmap(o->at + first * PAGE, (n - first) * PAGE) != 0;
    }
    given_back += o->size;
    put("failed", failed);
    o->kind = NONE;
}

enum { PROTECT, ADVISE, POSIX_ADVISE, LOCK, LOCK2, UNLOCK, RESIDENT, SYNC, PROTECT_KEY, PROCESS_ADVISE };
static int make(unsigned long which, char *at, size_t len, int more) {
    static unsigned char resident[MOST_PAGES];
    struct iovec part = {at, len};
    switch (which) {
    case PROTECT:
        return mprotect(at, len, more);
    case ADVISE:
        return madvise(at, len, more);
    case POSIX_ADVISE:
        return posix_madvise(at, len, more);
    case LOCK:
        return mlock(at, len);
    case LOCK2:
        return mlock2(at, len, more);
    case UNLOCK:
        return munlock(at, len);
    case RESIDENT:
        return mincore(at, len, resident);
    case SYNC:
        return msync(at, len, more);
    case PROTECT_KEY:
        return pkey_mprotect(at, len, more, -1);
    default: {
        int self = syscall(SYS_pidfd_open, getpid(), 0);
        errno = 77;
        int done = process_madvise(self, &part, 1, more, 0);
        int error = errno;
        close(self);
        errno = error;
        return done;
    }
    }
}
/* Makes a raw call, which a preloaded library does not see. */
static int make_raw(unsigned long which, char *at, size_t len, int more) {
    switch (which) {
    case PROTECT:
    case PROTECT_KEY:
        return syscall(SYS_mprotect, at, len, more);
    case ADVISE:
    case PROCESS_ADVISE:
        return syscall(SYS_madvise, at, len, more);
    case LOCK:
        return syscall(SYS_mlock, at, len);
    case LOCK2:
        return syscall(SYS_mlock2, at, len, more);
    case UNLOCK:
        return syscall(SYS_munlock, at, len);
    default:
        return make(which, at, len, more);
    }
}
/* slot, offset, length, which call, its last argument, whether it is a raw call */
static void op_range(size_t index, const unsigned long *a) {
    (void)index;
    int slot = a[0] % SLOTS;
    unsigned long which = a[3] % 10;
    size_t len = a[2];
    if (!is_ours(slot, a[1], len) || (len > MOST_PAGES * PAGE && which == RESIDENT))
        return not_applicable("range");
    char *at = objects[slot].at + a[1];
    errno = 77;
    int done = a[5] ? make_raw(which, at, len, a[4]) : make(which, at, len, a[4]);
    put_result(done, errno);
    /* The kernel takes lazily freed pages at a time that differs, so this discards them now. */
    if ((which == ADVISE || which == PROCESS_ADVISE) && a[4] == 8)
        syscall(SYS_madvise, at, len, MADV_DONTNEED);
    put_mapping(slot, which != RESIDENT && which != SYNC && which != PROTECT);
    if (peek)
        put_contents(slot);
}
static void op_write(size_t index, const unsigned long *a) {
    (void)index;
    int slot = a[0] % SLOTS;
    struct object *o = &objects[slot];
    if (o->kind == HEAP || o->kind == NEW) {
        fill(slot, 0, o->size);
        return put_contents(slot);
    }
    if (a[2] > o->size || !is_ours(slot, a[1], a[2]))
        return not_applicable("range");
    put("faults", write_pages(slot, a[1], a[1] + a[2]));
    put_contents(slot);
}

/* slot, offset, old length, new length, flags, slot of the target, its offset */
static void op_mremap(size_t index, const unsigned long *a) {
    (void)index;
    int slot = a[0] % SLOTS, to = a[5] % SLOTS, flags = a[4];
    struct object *o = &objects[slot], *target = &objects[to];
    size_t from = a[1], old_len = rounded(a[2]), new_len = rounded(a[3]), goal = a[6];
    int fixed = (flags & MREMAP_FIXED) != 0, keeps = (flags & 4) != 0, whole = from == 0 && old_len == o->size;
    if (!is_ours(slot, from, a[2] ? a[2] : PAGE) || a[2] > o->size)
        return not_applicable("range");
    if (fixed && !is_ours(to, goal, a[3] ? a[3] : PAGE))
        return not_applicable("target");
    if (!fixed && !whole && target->kind != NONE)
        return not_applicable("taken");
    if (!fixed && keeps && target->kind != NONE)
        return not_applicable("taken");
    /* Whether there is room beside a mapping is equal in both runs only where the room is the
     * child's. */
    if (new_len > old_len && !fixed && !(whole && (flags & MREMAP_MAYMOVE))) {
        size_t end = from + old_len, more = new_len - old_len;
        int is_blocked = end < o->size && page_state[slot][end / PAGE] == MAPPED;
        int has_room = end + more < o->size && all_are(slot, end, more, HOLE) && !(flags & MREMAP_MAYMOVE);
        if (!is_blocked && !has_room)
            return not_applicable("room");
    }
    if (new_len > MOST_PAGES * PAGE && a[3] < 1ul << 47)
        return not_applicable("size");
    char *at = o->at + from;
    errno = 77;
    char *made = mremap(at, a[2], a[3], flags, fixed ? target->at + goal : 0);
    put("e", errno);
    if (made == MAP_FAILED) {
        put("r", -1);
        if (fixed)
            set_pages(to, goal, a[3], UNKNOWN);
    } else if (fixed) {
        put_text("r", made == target->at + goal ? "there" : "elsewhere");
        set_pages(to, goal, new_len, MAPPED);
        if (!keeps)
            set_pages(slot, from, old_len, HOLE);
        put_mapping(to, 0);
        put_contents(to);
    } else if (made == at && !keeps) {
        put_text("r", "ok");
        if (from + new_len > o->size)
            o->size = from + new_len;
        if (new_len > old_len)
            set_pages(slot, from + old_len, new_len - old_len, MAPPED);
        if (new_len < old_len)
            set_pages(slot, from + new_len, old_len - new_len, HOLE);
        if (whole && new_len < old_len)
            o->size = new_len;
    } else if (whole && !keeps) {
        put_text("r", "ok");
        size_t kept = old_len < new_len ? old_len : new_len;
        static unsigned char states[MOST_PAGES];
        memcpy(states, page_state[slot], kept / PAGE);
        new_object(slot, made, new_len);
        memcpy(page_state[slot], states, kept / PAGE);
    } else {
        put_text("r", "moved");
        new_object(to, made, new_len);
        if (!keeps)
            set_pages(slot, from, old_len, HOLE);
        put_mapping(to, 0);
        put_contents(to);
    }
    put_mapping(slot, 0);
    put_contents(slot);
}

/* Called in a child: other mappings may soon take the addresses of the pages that it did not
 * inherit. */
void forget_missing(void) {
    for (int slot = 0; slot < SLOTS; slot++) {
        struct object *o = &objects[slot];
        if (o->kind != MAP)
            continue;
        refresh(slot);
        for (size_t n = 0; n < o->size / PAGE; n++)
            if (page_state[slot][n] == MAPPED && syscall(SYS_msync, o->at + n * PAGE, PAGE, MS_ASYNC) != 0)
                page_state[slot][n] = UNKNOWN;
    }
}

static void op_lock_all(size_t index, const unsigned long *a) {
    (void)index;
    errno = 77;
    int done = a[0] ? mlockall(a[0]) : munlockall();
    put_result(done, errno);
    put("locked", status_kib("VmLck") > 0);
}
static void op_locked(size_t index, const unsigned long *a) {
    (void)index, (void)a;
    put("locked", status_kib("VmLck"));
}

const struct named map_operations[] = {
    {"mmap", op_mmap},     {"munmap", op_munmap}, {"drop", op_drop},       {"range", op_range},   {"write", op_write},
    {"mremap", op_mremap}, {"lockall", op_lock_all}, {"locked", op_locked}, {0, 0},
};
