// What makes a C++ compiler use memory: large headers and many instantiations.
#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <sstream>
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

int main(int argc, char **argv) {
    Node<DEPTH> node;
    std::regex words("[a-z]+([0-9]*)");
    std::smatch found;
    std::string text(argc > 1 ? argv[1] : "word7");
    std::cout << node.count() + std::regex_match(text, found, words) << "\n";
}
