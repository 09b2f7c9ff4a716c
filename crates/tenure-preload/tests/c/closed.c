/* The signal that a touch of unmapped memory raises. */
#include "check.h"

int main(void) {
    static const struct {
        const char *name;
        size_t len;
    } all[] = {{"64K", 64 * KIB}, {"1M", MIB}, {"20M", 20 * MIB}};
    for (int n = 0; n < 3; n++) {
        char *at = map(all[n].len);
        memset(at, 1, all[n].len);
        CHECK(munmap(at, all[n].len) == 0);
        printf("%s %d\n", all[n].name, touch(at + all[n].len / 2));
        at = map(all[n].len);
        CHECK(is_zero(at, all[n].len));
    }
    return 0;
}
