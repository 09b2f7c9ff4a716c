// All forms of C++'s operators. Built as a plugin, into the program, and (REPLACED) into the program with the
// throwing forms replaced, as the standard allows: the others go through them.
#include "operators.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

static long allocated;
#ifdef REPLACED
struct Header {
    size_t magic, size;
};
static long wrong;
void *operator new(std::size_t size) {
    Header *header = size < (1ul << 62) ? static_cast<Header *>(std::malloc(size + sizeof(Header))) : nullptr;
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
    wrong += header->magic != 0xabcdef;
    header->magic = 0;
    std::free(header);
}
void operator delete(void *at, std::size_t) noexcept { operator delete(at); }
#else
static const long wrong = 0;
#endif

static void *allocate(int form, size_t size, size_t align, int *threw) {
    auto to = std::align_val_t(align);
    try {
        switch (form) {
        case 0:
            return ::operator new(size);
        case ARRAY:
            return ::operator new[](size);
        case NOTHROW:
            return ::operator new(size, std::nothrow);
        case ARRAY | NOTHROW:
            return ::operator new[](size, std::nothrow);
        case ALIGNED:
            return ::operator new(size, to);
        case ALIGNED | ARRAY:
            return ::operator new[](size, to);
        case ALIGNED | NOTHROW:
            return ::operator new(size, to, std::nothrow);
        default:
            return ::operator new[](size, to, std::nothrow);
        }
    } catch (const std::bad_alloc &) {
        *threw = 1;
    }
    return nullptr;
}
static void release(int form, void *at, size_t size, size_t align, int sized) {
    auto to = std::align_val_t(align);
    switch ((form & (ARRAY | ALIGNED)) + (sized ? 8 : 0)) {
    case 0:
        return form & NOTHROW ? ::operator delete(at, std::nothrow) : ::operator delete(at);
    case ARRAY:
        return form & NOTHROW ? ::operator delete[](at, std::nothrow) : ::operator delete[](at);
    case ALIGNED:
        return form & NOTHROW ? ::operator delete(at, to, std::nothrow) : ::operator delete(at, to);
    case ALIGNED | ARRAY:
        return form & NOTHROW ? ::operator delete[](at, to, std::nothrow) : ::operator delete[](at, to);
    case 8:
        return ::operator delete(at, size);
    case 8 | ARRAY:
        return ::operator delete[](at, size);
    case 8 | ALIGNED:
        return ::operator delete(at, size, to);
    default:
        return ::operator delete[](at, size, to);
    }
}
static long work(unsigned long which, unsigned long size) {
    size = 1000 + size % 400000;
    long before = allocated, sum = 0;
    switch (which % 4) {
    case 0: {
        std::vector<int> numbers(size);
        for (size_t n = 0; n < size; n++)
            numbers[n] = int(n * 7919 % 200003);
        std::stable_sort(numbers.begin(), numbers.end());
        for (size_t n = 1; n < size; n++)
            sum += numbers[n - 1] > numbers[n];
        break;
    }
    case 1: {
        std::string text;
        while (text.size() < size)
            text += "abcdefgh";
        sum = long(text.size() + text[size / 2]);
        break;
    }
    case 2: {
        std::vector<std::unique_ptr<char[]>> blocks;
        for (int n = 0; n < 4; n++) {
            blocks.emplace_back(new (std::nothrow) char[size]);
            std::memset(blocks.back().get(), n, size);
        }
        for (auto &block : blocks)
            sum += block[0] + block[size - 1];
        break;
    }
    default: {
        auto temporary = std::get_temporary_buffer<long>(ptrdiff_t(size));
        sum = temporary.second == ptrdiff_t(size);
        std::return_temporary_buffer(temporary.first);
    }
    }
    return sum * 1000000 + (allocated - before) * 1000 + wrong;
}

extern "C" {
__attribute__((visibility("default"))) struct operators the_operators = {allocate, release, work};
}
