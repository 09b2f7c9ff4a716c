// The end of the process, while threads use tenure: handlers at exit and destructors of static and
// thread-local objects use caches and objects, too.
#include <tenure.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                \
                         tenure_last_error());                                                     \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static const size_t LEN = 1 << 20;
enum { END = 7 };

static void use(tenure_cache *cache, unsigned key)
{
    char value[4000];
    std::memset(value, static_cast<int>(key), sizeof value);
    CHECK(tenure_cache_insert(cache, &key, sizeof key, value, sizeof value) == 0);
    const void *bytes = nullptr;
    size_t len = 0;
    tenure_value *got = tenure_cache_get(cache, &key, sizeof key, &bytes, &len);
    if (got != nullptr)
        CHECK(len == sizeof value && std::memcmp(bytes, value, len) == 0);
    tenure_value_release(got);
}

static void use(tenure_volatile *object)
{
    void *bytes = nullptr;
    int lost = tenure_volatile_pin(object, &bytes);
    CHECK(lost >= 0);
    if (lost == 0) {
        char first = *static_cast<char *>(bytes);
        CHECK(first == 0 || first == 'x');
    }
    std::memset(bytes, 'x', LEN);
    CHECK(tenure_volatile_unpin(object) == 0);
}

struct Holder {
    tenure_cache *cache;
    tenure_volatile *object;
    Holder()
    {
        tenure_cache_opts opts = TENURE_CACHE_OPTS_INIT;
        cache = tenure_cache_new(&opts);
        object = tenure_volatile_new(LEN);
        CHECK(cache != nullptr && object != nullptr);
        use_both();
    }
    void use_both()
    {
        for (unsigned key = 0; key < 50; key++)
            use(cache, key);
        use(object);
    }
    ~Holder()
    {
        use_both();
        tenure_cache_free(cache);
        tenure_volatile_free(object);
    }
};

// Made before main, and destroyed after all handlers that main has registered.
static Holder before_main;

// Never destroyed: threads use it until the process has ended.
static Holder &shared()
{
    static Holder *made = new Holder;
    return *made;
}

static std::atomic<int> running(0);

static void *busy(void *)
{
    static thread_local Holder own;
    running++;
    for (unsigned key = 0;; key++) {
        use(shared().cache, key % 1000);
        own.use_both();
    }
}

static void *a_while(void *)
{
    static thread_local Holder own;
    for (int round = 0; round < 20; round++)
        own.use_both();
    return nullptr;
}

static void at_exit()
{
    shared().use_both();
    before_main.use_both();
}

static void at_quick_exit_too()
{
    at_exit();
    _exit(END);
}

static void *ends(void *)
{
    std::exit(END);
}

static int ends_in_refill(void *, size_t, void *, size_t)
{
    std::exit(END);
}

static void end_by(int way)
{
    pthread_t thread;
    switch (way) {
    case 0:
        std::exit(END);
    case 1: // on another thread
        CHECK(pthread_create(&thread, nullptr, ends, nullptr) == 0);
        for (;;)
            pause();
    case 2:
        std::quick_exit(END);
    case 3: { // inside tenure's call of the program's function
        tenure_volatile_opts opts = TENURE_VOLATILE_OPTS_INIT;
        opts.refill = ends_in_refill;
        tenure_volatile *object = tenure_volatile_new_with(LEN, &opts);
        void *bytes = nullptr;
        CHECK(object != nullptr && tenure_volatile_pin(object, &bytes) >= 0);
        std::memset(bytes, 'y', LEN);
        CHECK(tenure_volatile_unpin(object) == 0);
        size_t taken = 0;
        for (int attempt = 0; taken == 0; attempt++)
            CHECK(attempt < 2000 && tenure_volatile_purge_now(object, &taken) == 0);
        CHECK(tenure_volatile_pin(object, &bytes) >= 0);
        CHECK(!"the refill function has ended the process");
        break;
    }
    case 4: // with the background threads ended
        tenure_end_background_threads();
        std::exit(END);
    default:
        break;
    }
}

int main()
{
    enum { WAYS = 5, ROUNDS = 6 };
    for (int round = 0; round < WAYS * ROUNDS; round++) {
        std::fflush(nullptr);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            static Holder in_child;
            CHECK(std::atexit(at_exit) == 0 && std::at_quick_exit(at_quick_exit_too) == 0);
            pthread_t thread;
            for (int n = 0; n < 2; n++)
                CHECK(pthread_create(&thread, nullptr, busy, nullptr) == 0);
            CHECK(pthread_create(&thread, nullptr, a_while, nullptr) == 0);
            while (running < 2)
                usleep(100);
            usleep(static_cast<useconds_t>(round / WAYS * 700));
            end_by(round % WAYS);
            _exit(2);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != END) {
            std::fprintf(stderr, "way %d: status %#x\n", round % WAYS, status);
            return 1;
        }
    }
    return 0;
}
