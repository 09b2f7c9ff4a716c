/* Makes a few calls, which the report counts. */
#include "check.h"

/* One block, and one mapping that another one replaces. */
static void replace(void) {
    memset(malloc(MIB), 1, MIB);
    char *at = map(2 * MIB);
    memset(at, 1, 2 * MIB);
    CHECK(mmap(at, 2 * MIB, RW, ANON | MAP_FIXED, -1, 0) == at && is_zero(at, 2 * MIB));
}

/* A child that does nothing after its parent has resized a block three times. */
static void resize_and_fork(void) {
    char *block = malloc(MIB);
    for (size_t pages = 1; pages <= 3; pages++)
        CHECK((block = realloc(block, MIB - pages * 8 * KIB)));
    pid_t child = fork();
    if (child == 0)
        exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "replace"))
        replace();
    else
        resize_and_fork();
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    printf("%ld\n", used.ru_minflt);
    return 0;
}
