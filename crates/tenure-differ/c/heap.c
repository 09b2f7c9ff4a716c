/* malloc's family, and C++'s operators. */
#include "differ.h"
#include "operators.h"
#include <dlfcn.h>
#include <malloc.h>

#define BEGIN errno = 77
extern void *reallocarray(void *, size_t, size_t);

/* Only some words of large blocks are read; of `sparse` ones one word in 2 MiB, so that few
 * pages are touched. */
static size_t stride_for(size_t size, int sparse) {
    if (sparse)
        return 2ul << 20;
    return size <= (256ul << 10) ? 8 : size <= (8ul << 20) ? 64 : 4096 + 64;
}

static int may_take(unsigned long n) {
    if (slot_of(n)->kind == NONE)
        return 1;
    not_applicable("taken");
    return 0;
}

size_t given_back;
void gave_back(int slot) {
    struct object *o = slot_of(slot);
    given_back += o->stride <= PAGE * 2 ? o->size : (o->size / o->stride + 2) * PAGE;
}

/* Adds a block that was just allocated. Its contents are not defined, except for calloc. */
static void take(int slot, void *at, size_t size, size_t align, int zeroed, int sparse, int error) {
    struct object *o = slot_of(slot);
    generation++;
    put_text("r", at ? "block" : "null");
    put("e", at ? 0 : error);
    if (!at)
        return;
    put("misaligned", align ? (size_t)at % align : 0);
    *o = (struct object){HEAP, at, size, stride_for(size, sparse), 0, o->version, 0, align};
    if (zeroed) {
        size_t other = 0;
        for (size_t n = 0; n < size; n += sparse ? o->stride : size > (8ul << 20) ? 512 : 8)
            other += ((char *)at)[n] != 0;
        put("dirty", other);
    }
    fill(slot, 0, size);
}

static void op_malloc(size_t index, const unsigned long *a) {
    (void)index;
    if (!may_take(a[0]))
        return;
    BEGIN;
    void *at = malloc(a[1]);
    take(a[0] % SLOTS, at, a[1], 16, 0, a[2], errno);
}
static void op_calloc(size_t index, const unsigned long *a) {
    (void)index;
    if (!may_take(a[0]))
        return;
    BEGIN;
    void *at = calloc(a[1], a[2]);
    take(a[0] % SLOTS, at, a[1] * a[2], 16, 1, a[3], errno);
}
static void op_memalign(size_t index, const unsigned long *a) {
    (void)index;
    if (!may_take(a[0]))
        return;
    void *at = 0;
    int result = 0;
    size_t align = a[2];
    BEGIN;
    switch (a[1] % 5) {
    case 0:
        at = memalign(align, a[3]);
        break;
    case 1:
        at = aligned_alloc(align, a[3]);
        break;
    case 2:
        result = posix_memalign(&at, align, a[3]);
        put("result", result);
        break;
    case 3:
        at = valloc(a[3]), align = PAGE;
        break;
    default:
        at = pvalloc(a[3]), align = PAGE;
    }
    int error = errno;
    /* memalign uses the next power of two. The result is a multiple of the requested alignment,
     * or null. */
    size_t power = 16;
    while (power < align && power < (1ul << 40))
        power *= 2;
    take(a[0] % SLOTS, result ? 0 : at, a[3], power, 0, a[4], error);
}

static void resized(size_t index, int slot, void *at, size_t size, int sparse, int error) {
    (void)index;
    struct object *o = slot_of(slot);
    size_t kept = o->kind == HEAP ? (o->size < size ? o->size : size) : 0;
    generation++;
    put_text("r", at ? "block" : "null");
    put("e", at ? 0 : error);
    if (!at) {
        if (size == 0 && o->kind == HEAP)
            o->kind = NONE;
        return;
    }
    put("misaligned", (size_t)at % 16);
    size_t was = o->size;
    if (o->kind == HEAP)
        gave_back(slot);
    o->at = at;
    o->size = size;
    if (o->kind == HEAP) {
        o->size = was < size ? was : size;
        /* The last word of the larger block lies beyond the new end. */
        if (kept == was || o->stride == 8)
            put_hex("kept", hash_of(slot, kept));
        else {
            uint64_t sum = 0;
            for (size_t n = 0; n + 8 <= kept; n += o->stride)
                sum = mix(sum, hash_bytes(o->at + n, 8));
            put_hex("kept", sum);
        }
    }
    *o = (struct object){HEAP, at, size, stride_for(size, sparse), 0, o->version, 0, 16};
    fill(slot, 0, size);
}
static void op_realloc(size_t index, const unsigned long *a) {
    struct object *o = slot_of(a[0]);
    if (o->kind != NONE && o->kind != HEAP)
        return not_applicable("kind");
    BEGIN;
    void *at = realloc(o->kind == HEAP ? o->at : 0, a[1]);
    resized(index, a[0] % SLOTS, at, a[1], a[2], errno);
}
static void op_reallocarray(size_t index, const unsigned long *a) {
    struct object *o = slot_of(a[0]);
    if (o->kind != NONE && o->kind != HEAP)
        return not_applicable("kind");
    size_t bytes;
    int over = __builtin_mul_overflow(a[1], a[2], &bytes);
    BEGIN;
    void *at = reallocarray(o->kind == HEAP ? o->at : 0, a[1], a[2]);
    resized(index, a[0] % SLOTS, at, over ? 1 : bytes, a[3], errno);
}
/* The object in the slot, of this kind, which is about to be given back. */
static struct object *to_give_back(unsigned long slot, int kind) {
    struct object *o = slot_of(slot);
    if (o->kind != kind) {
        not_applicable("kind");
        return 0;
    }
    if (peek)
        put_contents(slot % SLOTS);
    gave_back(slot);
    return o;
}
static void op_free(size_t index, const unsigned long *a) {
    (void)index;
    struct object *o = to_give_back(a[0], HEAP);
    if (!o)
        return;
    BEGIN;
    free(o->at);
    put("e", errno);
    generation++;
    o->kind = NONE;
}
static void op_usable(size_t index, const unsigned long *a) {
    (void)index;
    struct object *o = slot_of(a[0]);
    if (o->kind != HEAP)
        return not_applicable("kind");
    size_t bytes = malloc_usable_size(o->at);
    put("enough", bytes >= o->size);
    /* Up to the cost of the alignment and of a page. */
    put("~usable", bytes / 1024);
    put("~align", o->align / 1024);
    if (bytes > o->size && bytes - o->size < (64 << 10))
        memset(o->at + o->size, 0x5a, bytes - o->size);
    put_contents(a[0] % SLOTS);
}
static void op_check(size_t index, const unsigned long *a) {
    (void)index;
    struct object *o = slot_of(a[0]);
    if (o->kind == NONE)
        return not_applicable("kind");
    put_contents(a[0] % SLOTS);
}
static void op_sweep(size_t index, const unsigned long *a) {
    (void)index, (void)a;
    sweep();
}

/* The operators: of the program if it is C++, otherwise of a plugin. */
static struct operators *operators;
static void *plugin(const char *variable, const char *symbol) {
    const char *path = getenv(variable);
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : 0;
    return library ? dlsym(library, symbol) : 0;
}
__attribute__((weak)) extern struct operators the_operators;
void find_operators(void) { operators = &the_operators; }
static int have_operators(void) {
    if (!operators)
        operators = plugin("DIFFER_OPERATORS", "the_operators");
    generation++;
    if (operators)
        return 1;
    not_applicable("plugin");
    return 0;
}
static void op_new(size_t index, const unsigned long *a) {
    (void)index;
    if (!may_take(a[0]) || !have_operators())
        return;
    int threw = 0;
    void *at = operators->allocate(a[1] % FORMS, a[2], a[3], &threw);
    put("threw", threw);
    size_t align = a[1] & ALIGNED ? a[3] : 16;
    take(a[0] % SLOTS, at, a[2], align, 0, 0, 0);
    if (!at)
        return;
    slot_of(a[0])->kind = NEW;
    slot_of(a[0])->form = a[1] % FORMS;
    slot_of(a[0])->align = a[3];
}
static void op_delete(size_t index, const unsigned long *a) {
    (void)index;
    struct object *o = to_give_back(a[0], NEW);
    if (!o)
        return;
    operators->release(o->form, o->at, o->size, o->align, a[1] & 1);
    generation++;
    o->kind = NONE;
}
static void op_cxx(size_t index, const unsigned long *a) {
    (void)index;
    if (have_operators())
        put("r", operators->work(a[0], a[1]));
}
/* Plugins with their own allocators, which count for themselves. */
static void op_plugin(size_t index, const unsigned long *a) {
    (void)index;
    generation++;
    int (*work)(size_t) = a[0] & 1 ? plugin("DIFFER_NAMES", "work") : plugin("DIFFER_OWN", "work");
    if (!work)
        return not_applicable("plugin");
    put("r", work(a[1]));
}
static void op_trim(size_t index, const unsigned long *a) {
    (void)index;
    /* The result is not recorded, because it depends on the allocator. */
    malloc_trim(a[0]);
    generation++;
    put("mallopt", mallopt(M_ARENA_TEST, 8));
}

const struct named heap_operations[] = {
    {"malloc", op_malloc},   {"calloc", op_calloc},   {"memalign", op_memalign}, {"realloc", op_realloc},
    {"reallocarray", op_reallocarray}, {"free", op_free}, {"usable", op_usable}, {"check", op_check},
    {"sweep", op_sweep},     {"new", op_new},         {"delete", op_delete},     {"cxx", op_cxx},
    {"plugin", op_plugin},   {"trim", op_trim},       {0, 0},
};
