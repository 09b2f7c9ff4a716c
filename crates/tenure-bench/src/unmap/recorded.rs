//! Measurements that several tables share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::rc::Rc;

/// Takes each contestant's measurement of each round once, when the first table needs it.
///
/// The tables of a case ask in one order, so the first one's rounds are interleaved, and the others
/// repeat them.
pub(super) struct Recorded<'a, K, T> {
    measure: Box<dyn Fn(K) -> io::Result<T> + 'a>,
    taken: RefCell<HashMap<(K, usize), Taken<T>>>,
}

type Taken<T> = Result<Rc<T>, (io::ErrorKind, String)>;

impl<'a, K: Copy + Eq + Hash, T> Recorded<'a, K, T> {
    pub fn new(measure: impl Fn(K) -> io::Result<T> + 'a) -> Self {
        Recorded { measure: Box::new(measure), taken: RefCell::default() }
    }

    /// The measurement of this contestant in this round.
    pub fn get(&self, contestant: K, round: usize) -> io::Result<Rc<T>> {
        let known = self.taken.borrow().get(&(contestant, round)).cloned();
        let taken = known.unwrap_or_else(|| {
            let taken = (self.measure)(contestant)
                .map(Rc::new)
                .map_err(|error| (error.kind(), error.to_string()));
            self.taken.borrow_mut().insert((contestant, round), taken.clone());
            taken
        });
        taken.map_err(|(kind, why)| io::Error::new(kind, why))
    }

    /// All measurements of a contestant that succeeded, the warm-up (round 0) left out.
    pub fn all(&self, contestant: K) -> Vec<Rc<T>> {
        let taken = self.taken.borrow();
        let mut rounds: Vec<_> = taken
            .iter()
            .filter(|((known, round), _)| *known == contestant && *round > 0)
            .filter_map(|((_, round), result)| Some((*round, result.as_ref().ok()?.clone())))
            .collect();
        rounds.sort_by_key(|(round, _)| *round);
        rounds.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_round_is_measured_once() {
        let calls = Cell::new(0);
        let recorded = Recorded::new(|key: char| {
            calls.set(calls.get() + 1);
            match key {
                'x' => Err(io::Error::new(io::ErrorKind::Unsupported, "not here")),
                _ => Ok(calls.get()),
            }
        });
        assert_eq!(*recorded.get('a', 0).unwrap(), 1);
        assert_eq!(*recorded.get('a', 1).unwrap(), 2);
        assert_eq!(*recorded.get('a', 0).unwrap(), 1);
        for _ in 0..2 {
            let error = recorded.get('x', 0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        }
        assert_eq!(calls.get(), 3);
        let all: Vec<i32> = recorded.all('a').iter().map(|value| **value).collect();
        assert_eq!(all, [2]);
    }
}
