// Both headers are C++ as well, in either order.
#include "tenure_compat.h"
#include "tenure.h"

#include <cstring>

static void gone(size_t, size_t len, void *sum)
{
    *static_cast<size_t *>(sum) += len;
}

static int refill(void *, size_t, void *bytes, size_t len)
{
    std::memset(bytes, 'r', len);
    return 0;
}

int main()
{
    struct tenure_stats stats;
    if (tenure_stats(&stats, sizeof stats) != 0)
        return 1;
    struct tenure_volatile_opts opts = TENURE_VOLATILE_OPTS_INIT;
    opts.refill = refill;
    tenure_volatile *v = tenure_volatile_new_with(1 << 16, &opts);
    void *bytes = nullptr;
    size_t taken = 0, lost = 0;
    if (v == nullptr || tenure_volatile_pin(v, &bytes) != 0)
        return 2;
    std::memset(bytes, 'a', 1 << 16);
    if (tenure_volatile_unpin(v) != 0 || tenure_volatile_purge_now(v, &taken) != 0)
        return 3;
    if (taken != 1 << 16 || tenure_volatile_pin(v, &bytes) != 0)
        return 4;
    if (static_cast<char *>(bytes)[12345] != 'r' || tenure_volatile_lost(v, gone, &lost) != 0)
        return 5;
    tenure_volatile_free(v);
    struct tenure_cache_opts cache_opts = TENURE_CACHE_OPTS_INIT;
    tenure_cache *cache = tenure_cache_new(&cache_opts);
    if (cache == nullptr || tenure_cache_insert(cache, "k", 1, "v", 1) != 0)
        return 6;
    tenure_value *value = tenure_cache_get(cache, "k", 1, nullptr, nullptr);
    tenure_cache_free(cache);
    tenure_value_release(value);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKONFAULT;
    void *born = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    /* Locked: MADV_DONTNEED is refused. */
    if (born == MAP_FAILED || madvise(born, 4096, MADV_DONTNEED) == 0)
        return 8;
    if (munlock2(born, 4096, MLOCK_ONFAULT) != 0 || madvise(born, 4096, MADV_DONTNEED) != 0)
        return 9;
    if (mlock2(born, 4096, MLOCK_LOCKED) != 0 || munlock2(born, 4096, MLOCK_LOCKED) != 0)
        return 10;
    return value != nullptr && lost == 0 && mvolatile(nullptr, 0) == -1 ? 0 : 7;
}
