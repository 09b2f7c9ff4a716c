/* Structures that carry their size: an older and a newer program with this library. */
#include "check.h"

#include <stddef.h>

static void written(void)
{
    /* Nothing is offered between two questions. */
    struct tenure_settings late, usual;
    CHECK(tenure_settings(&usual, sizeof usual) == 0);
    late = usual;
    late.offer_after_us = UINT64_C(3600000000);
    CHECK(tenure_configure(&late) == 0);
    unsigned char *p = map(16 * PAGE);
    fill(p, 0, 16);
    CHECK(tenure_mvolatile(p, 16 * PAGE) == 0);

    struct tenure_stats full;
    CHECK(tenure_stats(&full, sizeof full) == 0);
    CHECK(full.ranges == 1 && full.marked == 1 && full.marked_bytes == 16 * PAGE);
    CHECK(full.offered == 0 && full.pinned == 0);

    /* Older: the library writes no byte beyond the program's structure. */
    unsigned char bytes[sizeof full + 64];
    memset(bytes, 0x5A, sizeof bytes);
    CHECK(tenure_stats((struct tenure_stats *)bytes, 20) == 0);
    CHECK(memcmp(bytes, &full, 20) == 0);
    for (size_t i = 20; i < sizeof bytes; i++)
        CHECK(bytes[i] == 0x5A);
    CHECK(tenure_stats((struct tenure_stats *)bytes, 0) == 0 && bytes[20] == 0x5A);
    /* Newer: the library writes zeros to the fields that it does not know. */
    CHECK(tenure_stats((struct tenure_stats *)bytes, sizeof bytes) == 0);
    CHECK(memcmp(bytes, &full, offsetof(struct tenure_stats, total_offers)) == 0);
    for (size_t i = sizeof full; i < sizeof bytes; i++)
        CHECK(bytes[i] == 0);
    FAILS(tenure_stats(NULL, sizeof full), EINVAL, "NULL");

    /* The counts are those of the calls above. */
    struct tenure_survey survey;
    CHECK(tenure_purge_now(p, 16 * PAGE) == 0);
    CHECK(tenure_survey(&survey, sizeof survey) == 0);
    CHECK(survey.offered_bytes == 16 * PAGE && survey.gone_bytes == 16 * PAGE);
    CHECK(tenure_mnovolatile(p, 16 * PAGE) == 1);
    struct tenure_stats after;
    CHECK(tenure_stats(&after, sizeof after) == 0);
    CHECK(after.total_purges == full.total_purges + 1);
    CHECK(after.total_purged_bytes == full.total_purged_bytes + 16 * PAGE);
    CHECK(after.total_offers == full.total_offers + 1 && after.pinned == 1);
    CHECK(tenure_forget(p, 16 * PAGE) == 0);
    FAILS(tenure_survey(NULL, sizeof survey), EINVAL, "NULL");

    struct tenure_cache *c = tenure_cache_new(NULL);
    struct tenure_cache_stats cached;
    CHECK(tenure_cache_insert(c, "k", 1, "v", 1) == 0);
    memset(&cached, 0x5A, sizeof cached);
    CHECK(tenure_cache_stats(c, &cached, offsetof(struct tenure_cache_stats, evictions)) == 0);
    CHECK(cached.insertions == 1 && cached.hits == 0);
    CHECK(cached.evictions == UINT64_C(0x5A5A5A5A5A5A5A5A));
    FAILS(tenure_cache_stats(c, NULL, sizeof cached), EINVAL, "NULL");
    tenure_cache_free(c);
    CHECK(tenure_configure(&usual) == 0);
}

static void settings(void)
{
    struct tenure_settings now, again;
    CHECK(tenure_settings(&now, sizeof now) == 0);
    CHECK(now.size == sizeof now && now.unoffered_max == TENURE_AUTOMATIC);
    now.offer_after_us = 123456;
    now.unoffered_max = 32 * MIB;
    CHECK(tenure_configure(&now) == 0);
    CHECK(tenure_settings(&again, sizeof again) == 0);
    CHECK(again.offer_after_us == 123456 && again.unoffered_max == 32 * MIB);
    now.unoffered_max = TENURE_AUTOMATIC;
    CHECK(tenure_configure(&now) == 0);
    CHECK(tenure_settings(&again, sizeof again) == 0 && again.unoffered_max == TENURE_AUTOMATIC);

    /* A newer program: fields that this library does not know may exist, but must be zero. */
    struct {
        struct tenure_settings known;
        uint64_t later;
    } newer = {now, 0};
    CHECK(tenure_settings(&newer.known, sizeof newer) == 0);
    CHECK(newer.known.size == sizeof now);
    newer.known.size = sizeof newer;
    newer.known.offer_after_us = 500000;
    CHECK(tenure_configure(&newer.known) == 0);
    newer.later = 1;
    newer.known.offer_after_us = 1;
    FAILS(tenure_configure(&newer.known), E2BIG, "byte 24");
    CHECK(tenure_settings(&again, sizeof again) == 0 && again.offer_after_us == 500000);

    FAILS(tenure_configure(NULL), EINVAL, "no settings");
    now.size = 0;
    FAILS(tenure_configure(&now), EINVAL, "sizeof");
    FAILS(tenure_settings(&now, 4), EINVAL, "size field");
    FAILS(tenure_settings(NULL, sizeof now), EINVAL, "NULL");
}

static void options(void)
{
    struct {
        struct tenure_volatile_opts known;
        uint64_t later;
    } newer = {TENURE_VOLATILE_OPTS_INIT, 0};
    newer.known.size = sizeof newer;
    struct tenure_volatile *v = tenure_volatile_new_with(PAGE, &newer.known);
    CHECK(v != NULL);
    tenure_volatile_free(v);
    newer.later = 1;
    FAILS_NULL(tenure_volatile_new_with(PAGE, &newer.known), E2BIG, "newer");
    newer.known.size = 8;
    FAILS_NULL(tenure_volatile_new_with(PAGE, &newer.known), EINVAL, "sizeof");
    v = tenure_volatile_new_with(PAGE, NULL);
    CHECK(v != NULL);
    tenure_volatile_free(v);
}

int main(void)
{
    written();
    settings();
    options();
    return 0;
}
