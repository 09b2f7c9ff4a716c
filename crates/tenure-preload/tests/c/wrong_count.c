/* A library that is preloaded behind tenure's. Its dl_iterate_phdr tells no counts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

typedef int Visit(struct dl_phdr_info *, size_t, void *);
struct walk {
    Visit *visit;
    void *data;
};

static int without_counts(struct dl_phdr_info *about, size_t bytes, void *data) {
    struct walk *walk = data;
    struct dl_phdr_info other = *about;
    (void)bytes;
    other.dlpi_adds = other.dlpi_subs = 0;
    return walk->visit(&other, sizeof other, walk->data);
}

int dl_iterate_phdr(Visit *visit, void *data) {
    int (*next)(Visit *, void *) = (int (*)(Visit *, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    struct walk walk = {visit, data};
    return next ? next(without_counts, &walk) : 0;
}
