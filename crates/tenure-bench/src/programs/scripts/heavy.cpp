// What makes a C++ compiler use memory: large headers and many instantiations.
#ifndef SMOKE
#include <algorithm>
#include <deque>
#include <future>
#include <iostream>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#endif
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#ifndef DEPTH
#define DEPTH 40
#endif

template <int N> struct Node {
    std::map<int, std::vector<std::tuple<std::string, double, Node<N - 1>>>> below;
    std::unordered_map<std::string, std::shared_ptr<Node<N - 1>>> named;
    std::function<int(const Node<N - 1> &)> measure;
    int count() const {
        int total = N;
        for (auto &[key, list] : below)
            for (auto &entry : list) total += key + std::get<2>(entry).count();
        for (auto &[name, node] : named) total += node ? node->count() : int(name.size());
        return total;
    }
};
template <> struct Node<0> {
    int count() const { return 1; }
};

int main([[maybe_unused]] int argc, [[maybe_unused]] char **argv) {
    Node<DEPTH> node;
#ifdef SMOKE
    return node.count();
#else
    std::regex words("[a-z]+([0-9]*)");
    std::smatch found;
    std::string text(argc > 1 ? argv[1] : "word7");
    std::cout << node.count() + std::regex_match(text, found, words) << "\n";
#endif
}
