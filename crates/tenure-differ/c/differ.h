/* The child of the differential driver. It makes the calls of a plan one by one, and writes a
 * record of each. */
#ifndef DIFFER_H
#define DIFFER_H
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define SLOTS 32
#define MOST_PAGES 65536ul
#define ARGUMENTS 8
#define FILE_BYTES ((1ul << 20) + 100)
#define FILE_FD 200 /* to read and write; FILE_FD + 1: to read */

enum kind { NONE, HEAP, NEW, MAP };
/* The model's state of a page of a mapping. The child does not touch pages that are not its own. */
enum { UNKNOWN, MAPPED, HOLE };

struct object {
    enum kind kind;
    char *at;
    size_t size;
    size_t stride;  /* one word in so many bytes is written and read */
    size_t made;    /* the value of `generation` when the holes were made */
    unsigned version;
    int form;
    size_t align;
};

extern struct object objects[SLOTS];
extern unsigned char page_state[SLOTS][MOST_PAGES];
/* Counts the calls that may map memory at an address that the child has not chosen: they may
 * take older holes. */
extern size_t generation;
extern int depth, peek;
/* The bytes that were freed or unmapped so far. An allocator may keep as many. */
extern size_t given_back;
void gave_back(int slot);

struct call {
    const char *name;
    unsigned long a[ARGUMENTS];
};
extern struct call *calls;
extern size_t call_count;

/* The record. */
void begin(size_t index, const char *name);
void put(const char *key, long value);
void put_hex(const char *key, unsigned long value);
void put_text(const char *key, const char *value);
void put_result(long value, int error);
void finish(void);
void not_applicable(const char *why);

/* Contents. */
uint64_t mix(uint64_t a, uint64_t b);
void fill(int slot, size_t from, size_t to);
uint64_t hash_of(int slot, size_t limit);
void put_contents(int slot);
/* Reads or writes memory that may not be accessible. Returns how many pages faulted. */
size_t write_pages(int slot, size_t from, size_t to);
uint64_t hash_bytes(const void *at, size_t len);

/* Records the kernel's view of the pages that the model has. */
void put_mapping(int slot, int deep);
void sweep(void);
long status_kib(const char *key);

/* Runs the calls from..to. */
void run(size_t from, size_t to);
typedef void operation(size_t index, const unsigned long *a);
struct named {
    const char *name;
    operation *make;
};
extern const struct named heap_operations[], map_operations[], process_operations[], more_operations[];
void find_operators(void);

static inline struct object *slot_of(unsigned long n) { return &objects[n % SLOTS]; }
#endif
