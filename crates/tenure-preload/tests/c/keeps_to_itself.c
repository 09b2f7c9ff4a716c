/* What a program may do to its own process: close all descriptors, drop its standard streams,
 * replace itself. */
#include "check.h"

int main(int count, char **arguments) {
    size_t len = 2 * MIB;
    for (int n = 0; n < 20; n++) {
        char *block = malloc(len), *at = map(len);
        memset(block, 1, len);
        memset(at, 1, len);
        free(block);
        munmap(at, len);
    }
    if (count < 2) {
        sleep_ms(700); /* the keeper works by now */
        puts("closing");
        fflush(stdout);
        for (int fd = 3; fd < 2000; fd++)
            close(fd);
        close(2);
        int file = open("mine", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        CHECK(file == 2); /* under standard error's number */
        CHECK(write(file, "data", 4) == 4);
        for (int n = 0; n < 50; n++) {
            char *block = malloc(len);
            memset(block, 2, len);
            free(block);
        }
        sleep_ms(700);
        char *again[] = {arguments[0], "again", NULL};
        if (fork() == 0)
            execv(again[0], again);
        wait(NULL);
    }
    return 0;
}
