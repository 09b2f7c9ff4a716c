/* The process ends with the last of the program's threads, also when the main one went first. */
#include "check.h"

static void *last(void *unused) {
    (void)unused;
    for (int n = 0; n < 20; n++) {
        char *at = malloc(8 * MIB);
        CHECK(at);
        fill(at, 4096, n);
        CHECK(is_filled(at, 4096, n));
        free(at);
        usleep(10000);
    }
    puts("the last thread is done");
    fflush(stdout);
    return NULL;
}

int main(void) {
    pthread_t thread;
    alarm(60);
    char *at = malloc(8 * MIB);
    CHECK(at);
    fill(at, 4096, 1);
    free(at);
    CHECK(pthread_create(&thread, NULL, last, NULL) == 0);
    pthread_exit(NULL);
}
