/* Children that are made without fork handlers, while the library's own threads work, use memory
 * and fork. */
#include "check.h"
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static void use_memory(void) {
    for (int n = 0; n < 4; n++) {
        char *block = calloc(1, MIB);
        CHECK(block && block[MIB - 1] == 0);
        memset(block, 1, MIB);
        free(block);
        char *at = map(2 * MIB);
        memset(at, 1, 2 * MIB);
        CHECK(munmap(at, 2 * MIB) == 0);
    }
}

static int ends_well(int child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(void) {
    time_t until = time(NULL) + 4;
    for (int n = 0; n < sweep(40, 150) && time(NULL) < until; n++) {
        use_memory();
        int child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            use_memory();
            int own = fork();
            if (own == 0) {
                use_memory();
                _exit(0);
            }
            _exit(!ends_well(own));
        }
        CHECK(ends_well(child));
    }
    puts("all children ended");
    return 0;
}
