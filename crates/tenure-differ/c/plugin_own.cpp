// A plugin with operators of its own, which count.
#include <cstdlib>
#include <new>

static int used;
void *operator new(std::size_t size) {
    used++;
    return std::malloc(size);
}
void operator delete(void *at) noexcept {
    used += 100;
    std::free(at);
}
void operator delete(void *at, std::size_t) noexcept {
    used += 100;
    std::free(at);
}
extern "C" int work(std::size_t size) {
    used = 0;
    void *volatile small = ::operator new(40);
    void *volatile large = ::operator new(size % 4000000 + 1);
    void *volatile quiet = ::operator new(size % 400000 + 1, std::nothrow);
    ::operator delete(small);
    ::operator delete(large);
    ::operator delete(quiet);
    return used;
}
