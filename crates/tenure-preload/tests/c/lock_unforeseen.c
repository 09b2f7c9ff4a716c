/* Locks all memory and allocates another block. Without /proc the library cannot tell before the
 * call that the kernel will allow it, where there is a limit. */
#include "check.h"

int main(void) {
    struct rlimit limit;
    memset(malloc(MIB), 1, MIB);
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (limit.rlim_max > 64 * MIB)
        limit.rlim_max = 64 * MIB;
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (mlockall(MCL_CURRENT | MCL_ONFAULT) != 0) {
        puts("refused");
        return 0;
    }
    memset(malloc(MIB), 1, MIB);
    puts("locked");
    return 0;
}
