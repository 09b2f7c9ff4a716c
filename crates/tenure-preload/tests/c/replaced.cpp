// A program that replaces the throwing forms of C++'s operators, as the standard allows: all other forms go
// through them. A block's header and the bytes of its neighbours must stay as they are.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

struct Header {
    uint64_t magic, size;
};
static long allocated, freed;

static void check(bool good, int line) {
    if (!good) {
        std::fprintf(stderr, "replaced.cpp:%d\n", line);
        std::_Exit(1);
    }
}
#define CHECK(condition) check(condition, __LINE__)

void *operator new(std::size_t size) {
    Header *header = static_cast<Header *>(std::malloc(size + sizeof(Header)));
    if (!header)
        throw std::bad_alloc();
    *header = {0xabcdef, size};
    allocated++;
    return header + 1;
}
void operator delete(void *at) noexcept {
    if (!at)
        return;
    Header *header = static_cast<Header *>(at) - 1;
    CHECK(header->magic == 0xabcdef);
    header->magic = 0;
    freed++;
    std::free(header);
}
void operator delete(void *at, std::size_t) noexcept { operator delete(at); }

int main() {
    std::vector<int> numbers(200000);
    for (size_t n = 0; n < numbers.size(); n++)
        numbers[n] = int(n * 7919 % 200003);
    std::stable_sort(numbers.begin(), numbers.end());
    for (size_t size : {100, 100000, 200000, 1000000, 5000000}) {
        char *first = new (std::nothrow) char[size], *second = new (std::nothrow) char[size];
        std::memset(first, 1, size);
        std::memset(second, 2, size);
        delete[] first;
        CHECK(second[0] == 2 && second[size - 1] == 2 && !std::memchr(second, 0, size));
        ::operator delete[](second, std::nothrow);
    }
    numbers = std::vector<int>();
    CHECK(allocated > 10);
    std::printf("%ld %ld\n", allocated, freed);
}
