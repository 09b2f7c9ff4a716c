/* A mapping over the pool's free memory belongs to the program, memory that the program was
 * granted stays, and files stay sparse. */
#include "check.h"
#include <sys/stat.h>

static void over_free_memory(void) {
    size_t len = 16 * MIB;
    char *at = map(len);
    fill(at, len, 1);
    CHECK(munmap(at, len) == 0);
    char *again = mmap(at, len, RW, ANON | MAP_FIXED, -1, 0);
    CHECK(again == at);
    fill(again, len, 2);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0) == child);
    sleep(3);
    CHECK(is_filled(again, len, 2));
    CHECK(munmap(again, len) == 0);
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    errno = 0;
    CHECK(write(pipes[1], again, 1) == -1 && errno == EFAULT);
    close(pipes[0]);
    close(pipes[1]);
}

/* Whether the kernel counts the mapping as memory that the process may write. */
static int is_counted(const char *at) {
    char line[512], first[32];
    int is_here = 0;
    snprintf(first, sizeof first, "%lx-", (unsigned long)at);
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        is_here = is_here || !strncmp(line, first, strlen(first));
        if (is_here && !strncmp(line, "VmFlags:", 8))
            break;
    }
    fclose(file);
    CHECK(is_here);
    return !strstr(line, " nr");
}

/* A file over it. */
static void a_file_over_free_memory(void) {
    size_t len = 4 * MIB;
    char *at = map(len);
    memset(at, 1, len);
    CHECK(munmap(at, len) == 0);
    int file = open("/proc/self/exe", O_RDONLY);
    CHECK(mmap(at, 4096, RW, MAP_PRIVATE | MAP_FIXED, file, 0) == at);
    CHECK(!memcmp(at, "\177ELF", 4) && is_counted(at));
    CHECK(munmap(at, 4096) == 0);
    close(file);
}

static void granted_bytes(void) {
    size_t sizes[] = {70000, 300000, 1100000, 2200000};
    for (int n = 0; n < 4; n++) {
        char *at = malloc(sizes[n]);
        size_t room = malloc_usable_size(at);
        CHECK(room >= sizes[n]);
        fill(at, room, n);
        at = realloc(at, 4 * room);
        CHECK(at && is_filled(at, room, n));
        free(at);
    }
}

static void sparse_files(void) {
    char name[] = "/tmp/tenure-sparse-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    CHECK(ftruncate(file, 64 * MIB) == 0);
    void *at = mmap(NULL, 64 * MIB, RW, MAP_SHARED | MAP_POPULATE, file, 0);
    CHECK(at != MAP_FAILED);
    struct stat stat;
    CHECK(fstat(file, &stat) == 0 && stat.st_blocks < 2048);
    CHECK(munmap(at, 64 * MIB) == 0);
    close(file);
}

int main(void) {
    over_free_memory();
    a_file_over_free_memory();
    granted_bytes();
    sparse_files();
    puts("all there");
    return 0;
}
