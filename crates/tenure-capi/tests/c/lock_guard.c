/* Counted locks, the locked state of a range, and whether more could be locked. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/resource.h>

#define PAGES ((size_t)8)
#define LEN (PAGES * PAGE)

/* The bytes of the range that have this state in the receipt. */
static size_t bytes_as(const void *p, size_t len, uint32_t state)
{
    struct tenure_lock_part parts[32];
    int count = tenure_lock_receipt(p, len, parts, sizeof parts[0], 32);
    CHECK(count >= 0 && count <= 32);
    size_t bytes = 0, at = (size_t)p;
    for (int n = 0; n < count; n++) {
        CHECK(parts[n].start >= at && parts[n].reserved == 0);
        at = parts[n].start + parts[n].len_bytes;
        if (parts[n].state == state)
            bytes += parts[n].len_bytes;
    }
    CHECK(at <= (size_t)p + len);
    return bytes;
}

static size_t charged(void)
{
    struct tenure_lock_answer answer;
    CHECK(tenure_lock_explain(0, &answer, sizeof answer) == 0);
    return answer.locked_bytes;
}

static void nests(unsigned char *p)
{
    size_t before = charged();
    struct tenure_held *a = tenure_lock(p, 6 * PAGE, TENURE_MLOCK_LOCKED);
    struct tenure_held *b = tenure_lock(p + 4 * PAGE, 4 * PAGE, TENURE_MLOCK_ONFAULT);
    CHECK(a && b && charged() == before + LEN);
    CHECK(bytes_as(p, LEN, TENURE_LOCK_FULL) == 6 * PAGE);
    CHECK(bytes_as(p, LEN, TENURE_LOCK_ON_FAULT) == 2 * PAGE);
    CHECK(present(p, LEN) == 6);
    tenure_unlock(a);
    CHECK(bytes_as(p, LEN, TENURE_LOCK_FULL) == 0);
    CHECK(bytes_as(p, LEN, TENURE_LOCK_ON_FAULT) == 4 * PAGE);
    CHECK(bytes_as(p, LEN, TENURE_LOCK_NONE) == 4 * PAGE);
    /* The uncounted call counts as one more lock. */
    CHECK(tenure_mlock2(p + 7 * PAGE, PAGE, TENURE_MLOCK_ONFAULT) == 0);
    tenure_unlock(b);
    CHECK(bytes_as(p, LEN, TENURE_LOCK_ON_FAULT) == PAGE && charged() == before + PAGE);
    CHECK(tenure_munlock2(p, LEN, TENURE_MLOCK_ONFAULT) == 0 && charged() == before);
    tenure_unlock(NULL);
}

static void receipts(unsigned char *p)
{
    /* The number of parts without room, with too little room, and with a size of a future
     * release. */
    struct tenure_held *held = tenure_lock(p + PAGE, PAGE, TENURE_MLOCK_LOCKED);
    CHECK(held);
    int count = tenure_lock_receipt(p, 3 * PAGE, NULL, 0, 0);
    CHECK(count == 3);
    struct tenure_lock_part one[2] = {{0}, {.start = 7}};
    CHECK(tenure_lock_receipt(p, 3 * PAGE, one, sizeof one[0], 1) == 3);
    CHECK(one[0].start == (size_t)p && one[0].len_bytes == PAGE && one[1].start == 7);
    struct {
        struct tenure_lock_part part;
        uint64_t newer;
    } later[3];
    memset(later, 0x55, sizeof later);
    CHECK(tenure_lock_receipt(p, 3 * PAGE, &later[0].part, sizeof later[0], 3) == 3);
    CHECK(later[1].part.state == TENURE_LOCK_FULL && later[1].part.resident_bytes == PAGE);
    CHECK(later[2].newer == 0 && later[2].part.start == (size_t)p + 2 * PAGE);
    tenure_unlock(held);
    FAILS(tenure_lock_receipt(p, LEN, NULL, sizeof one[0], 1), EINVAL, "NULL");
    FAILS(tenure_lock_receipt(p, 0, NULL, 0, 0), EINVAL, "empty");
}

static void refused(unsigned char *p)
{
    CHECK(tenure_lock(p, LEN, 3) == NULL && errno == EINVAL);
    CHECK(strstr(tenure_last_error(), "not one kind"));
    /* No limit holds for root with CAP_IPC_LOCK. */
    struct tenure_lock_answer answer;
    memset(&answer, 0x55, sizeof answer);
    int said = tenure_lock_explain((uint64_t)1 << 50, &answer, sizeof answer);
    CHECK(answer.bytes == (uint64_t)1 << 50);
    CHECK(answer.limit_needed_bytes == answer.bytes + answer.locked_bytes);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    uint64_t soft = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
    CHECK(answer.soft_limit_bytes == soft && answer.memory_free_bytes > 0);
    if (answer.verdict == TENURE_LOCK_EXEMPT) {
        CHECK(said == 0 && (soft == UINT64_MAX || answer.has_ipc_lock));
    } else {
        CHECK(said == 1 && strstr(tenure_last_error(), "LimitMEMLOCK="));
        CHECK(tenure_lock(p, (size_t)1 << 40, TENURE_MLOCK_ONFAULT) == NULL);
    }
    CHECK(tenure_lock_explain(PAGE, NULL, 0) >= 0);
    FAILS(tenure_lock_explain(PAGE, &answer, 100000), E2BIG, "sizeof");
}

int main(void)
{
    unsigned char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    nests(p);
    receipts(p);
    refused(p);
    CHECK(munmap(p, LEN) == 0);
    return 0;
}
