/* A secret is locked, not dumped, and wiped in a child. */
#include "check.h"

#define LEN ((size_t)5000)

/* Whether the kernel's flags of the mapping at an address have this one. */
static int has_flag(const void *at, const char *flag)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    CHECK(smaps != NULL);
    char line[1024];
    int inside = 0, found = 0;
    while (fgets(line, sizeof line, smaps) != NULL) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start <= (uintptr_t)at && (uintptr_t)at < end;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, flag) != NULL;
    }
    fclose(smaps);
    return found;
}

int main(void)
{
    FAILS_NULL(tenure_secret_new(LEN, NULL), EINVAL, "bytes is NULL");
    void *bytes = NULL;
    FAILS_NULL(tenure_secret_new(0, &bytes), EINVAL, "length");
    struct tenure_secret *secret = tenure_secret_new(LEN, &bytes);
    CHECK(secret != NULL && bytes != NULL);
    unsigned char *key = bytes;
    for (size_t i = 0; i < LEN; i++)
        CHECK(key[i] == 0);
    memset(key, 7, LEN);
    CHECK(has_flag(key, " lo") && has_flag(key, " lf") && has_flag(key, " dd") && has_flag(key, " wf"));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int seen = 0;
        for (size_t i = 0; i < LEN; i++)
            seen |= key[i];
        tenure_secret_free(secret);
        struct tenure_secret *own = tenure_secret_new(LEN, &bytes);
        CHECK(own != NULL);
        memset(bytes, 8, LEN);
        tenure_secret_free(own);
        _exit(seen != 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (size_t i = 0; i < LEN; i++)
        CHECK(key[i] == 7);
    tenure_secret_free(secret);
    tenure_secret_free(NULL);
    return 0;
}
