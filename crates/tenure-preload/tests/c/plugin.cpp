// A plugin with C++'s own operators, from a library that only the plugin needs.
#include <algorithm>
#include <new>
#include <vector>

extern "C" int work() {
    int *one = new int(5);
    std::vector<char> bytes(1 << 20, 3);
    std::vector<int> numbers(200000);
    for (size_t n = 0; n < numbers.size(); n++)
        numbers[n] = int(n * 7919 % 200003);
    std::stable_sort(numbers.begin(), numbers.end());
    char *quiet = new (std::nothrow) char[300000];
    int sum = *one + bytes[77] + numbers[0] + (quiet != nullptr);
    delete one;
    delete[] quiet;
    return sum;
}
