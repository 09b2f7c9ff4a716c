//! Circles in a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// The sets of nodes that reach one another, each with at least two: the strongly connected
/// components, found by reachability, because the graphs are small.
pub fn circles<N: Ord + Clone>(edges: impl Iterator<Item = (N, N)>) -> Vec<BTreeSet<N>> {
    let mut next: BTreeMap<N, BTreeSet<N>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(to.clone()).or_default();
        next.entry(from).or_default().insert(to);
    }
    let reach: BTreeMap<N, BTreeSet<N>> =
        next.keys().map(|from| (from.clone(), reached(&next, from))).collect();
    let mut found: Vec<BTreeSet<N>> = Vec::new();
    for (node, reached) in &reach {
        let circle: BTreeSet<N> =
            reached.iter().filter(|other| reach[*other].contains(node)).cloned().collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn reached<N: Ord + Clone>(next: &BTreeMap<N, BTreeSet<N>>, from: &N) -> BTreeSet<N> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        for to in &next[node] {
            if seen.insert(to.clone()) {
                open.push(to);
            }
        }
    }
    seen
}
