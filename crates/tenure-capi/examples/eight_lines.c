#include <string.h>
#include <tenure.h>
int main(void) {
    struct tenure_volatile *v = tenure_volatile_new(64 << 20); /* the kernel may take it */
    void *bytes;
    if (!v || tenure_volatile_pin(v, &bytes) < 0) return 1;    /* pinned: it stays */
    memset(bytes, 7, tenure_volatile_len(v));
    tenure_volatile_unpin(v);                                  /* from here on it may go */
    if (tenure_volatile_pin(v, &bytes) == 1)                   /* 1: some of it is gone */
        memset(bytes, 7, tenure_volatile_len(v)), tenure_volatile_restored(v);
    return ((char *)bytes)[123456] == 7 ? 0 : 1;
}
