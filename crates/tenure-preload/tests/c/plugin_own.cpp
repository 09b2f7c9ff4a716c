// A plugin with operators of its own.
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

extern "C" int work() {
    void *volatile small = ::operator new(40);
    ::operator delete(small);
    void *volatile large = ::operator new(400000);
    ::operator delete(large);
    return used;
}
