// Every form of new and delete, and blocks that pass between them and malloc's family.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

struct alignas(4096) Page {
    char bytes[300 * 1024];
};

static void check(bool good, int line) {
    if (!good) {
        std::fprintf(stderr, "operators.cpp:%d\n", line);
        std::exit(1);
    }
}
#define CHECK(condition) check(condition, __LINE__)

int main() {
    for (int round = 0; round < 200; round++) {
        std::vector<char> vector(1 << 18, char(round));
        vector.resize(3 << 18, 'x');
        CHECK(vector[(1 << 18) - 1] == char(round) && vector[1 << 18] == 'x');
        std::string text(500000, 'a');
        text += text;
        CHECK(text.size() == 1000000 && text[999999] == 'a');
        Page *page = new Page;
        CHECK(reinterpret_cast<size_t>(page) % 4096 == 0);
        delete page;
        Page *pages = new Page[3];
        std::memset(pages, 1, 3 * sizeof(Page));
        delete[] pages;
        char *quiet = new (std::nothrow) char[200000];
        std::memset(quiet, 2, 200000);
        delete[] quiet;
        ::operator delete(::operator new(300000), size_t(300000));
        ::operator delete(::operator new(300000, std::align_val_t(64)), std::align_val_t(64));
    }
    bool refused = false;
    try {
        volatile size_t huge = ~size_t(0) / 2;
        delete[] new char[huge];
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    CHECK(refused);
    std::puts("operators");
}
