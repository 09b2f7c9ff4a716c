// A plugin with operators of its own, which count: that of the launcher's tests, with work of any size.
#define work work_of_one_size
#include "own_operators.cpp"
#undef work

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
