//! Random sequences of locks, compared with a model of each page and the kernel's own account of
//! it.

mod lock_kit;

use lock_kit::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tenure::lock::{self, Kinds, Lock, Scope, When};
use tenure::ErrorKind;
use tenure_testkit::{in_child, this_test};

/// The area: twelve ordinary pages, one without access, a hole, one more.
const PAGES: usize = 15;
const NO_ACCESS: usize = 12;
const HOLE: usize = 13;

#[derive(Clone, Debug)]
enum Step {
    Lock(usize, usize, When),
    Drop(usize),
    Set(usize, When),
    Leak(usize),
    Mlock2(usize, usize, When),
    Munlock2(usize, usize, bool, bool),
    /// Other code's calls, on pages that tenure has not locked yet.
    Foreign(usize, usize, Option<When>),
    LockAll(bool),
    UnlockAll(bool, bool, bool),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Page {
    now: u32,
    on_fault: u32,
    base: Kinds,
    /// tenure has locked the page since it was last unlocked. Then plain calls by other code are
    /// beyond the promise.
    ours: bool,
}

impl Page {
    fn held(self) -> Held {
        match (self.now > 0 || self.base.now, self.on_fault > 0 || self.base.on_fault) {
            (true, _) => Held::Full,
            (_, true) => Held::OnFault,
            _ => Held::Not,
        }
    }
    fn count(&mut self, when: When) -> &mut u32 {
        match when {
            When::Now => &mut self.now,
            When::OnFault => &mut self.on_fault,
        }
    }
    fn flag(&mut self, when: When) -> &mut bool {
        match when {
            When::Now => &mut self.base.now,
            When::OnFault => &mut self.base.on_fault,
        }
    }
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![Just(When::Now), Just(When::OnFault)]
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    // Mostly inside the ordinary pages.
    prop_oneof![6 => (0usize..12, 1usize..8), 1 => (8usize..15, 1usize..8)]
        .prop_map(|(from, pages)| (from, pages.min(if from < 12 { 12 } else { PAGES } - from)))
        .prop_flat_map(|(from, pages)| {
            prop_oneof![5 => Just(pages), 1 => Just(pages + 3)]
                .prop_map(move |pages| (from, pages.min(PAGES - from)))
        })
}

fn step(whole_process: bool) -> impl Strategy<Value = Step> {
    let all = if whole_process { 1 } else { 0 };
    let mut steps = vec![
        (8, (range(), when()).prop_map(|((a, n), w)| Step::Lock(a, n, w)).boxed()),
        (7, (0usize..32).prop_map(Step::Drop).boxed()),
        (4, ((0usize..32), when()).prop_map(|(i, w)| Step::Set(i, w)).boxed()),
        (1, (0usize..32).prop_map(Step::Leak).boxed()),
        (4, (range(), when()).prop_map(|((a, n), w)| Step::Mlock2(a, n, w)).boxed()),
        (
            5,
            (range(), any::<bool>(), any::<bool>())
                .prop_map(|((a, n), now, lf)| Step::Munlock2(a, n, now, lf))
                .boxed(),
        ),
        (
            3,
            (range(), prop::option::of(when()))
                .prop_map(|((a, n), w)| Step::Foreign(a, n, w))
                .boxed(),
        ),
    ];
    if all > 0 {
        steps.push((all, any::<bool>().prop_map(Step::LockAll).boxed()));
        steps.push((
            all,
            (any::<bool>(), any::<bool>(), any::<bool>())
                .prop_map(|(c, f, o)| Step::UnlockAll(c, f, o))
                .boxed(),
        ));
    }
    proptest::strategy::Union::new_weighted(steps)
}

struct World {
    area: Area,
    pages: [Page; PAGES],
    guards: Vec<(usize, usize, Lock)>,
    /// Pages that may be locked, if there is a limit.
    limit: Option<usize>,
    charged: u64,
    only_area: bool,
}

impl World {
    fn new(limit: Option<usize>) -> World {
        let area = Area::new(PAGES);
        // SAFETY: inside the area.
        unsafe { libc::mprotect(area.page(NO_ACCESS).cast(), PAGE, libc::PROT_NONE) };
        area.unmap(HOLE, 1);
        World {
            area,
            pages: [Page::default(); PAGES],
            guards: Vec::new(),
            limit,
            charged: vm_lck(),
            only_area: true,
        }
    }

    /// The expected result of a lock of these pages.
    fn verdict(&self, from: usize, pages: usize, when: When) -> Result<(), ErrorKind> {
        let inside = from..from + pages;
        if inside.contains(&HOLE) {
            return Err(ErrorKind::NotMapped);
        }
        let new = self.pages[inside.clone()].iter().filter(|p| p.held() == Held::Not).count();
        let locked = self.pages.iter().filter(|p| p.held() != Held::Not).count();
        if self.limit.is_some_and(|limit| locked + new > limit && new > 0) {
            return Err(ErrorKind::LockLimit);
        }
        if when == When::Now && inside.contains(&NO_ACCESS) {
            return Err(ErrorKind::NoAccess);
        }
        Ok(())
    }

    fn go(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Lock(from, pages, when) => {
                let result = lock::lock(self.area.page(from), pages * PAGE, when);
                let expected = self.verdict(from, pages, when);
                prop_assert_eq!(result.as_ref().map(drop).map_err(|e| e.kind()), expected);
                if let Ok(guard) = result {
                    for page in &mut self.pages[from..from + pages] {
                        *page.count(when) += 1;
                    }
                    self.guards.push((from, pages, guard));
                }
            }
            Step::Drop(i) if !self.guards.is_empty() => {
                let (from, pages, guard) = self.guards.swap_remove(i % self.guards.len());
                let when = guard.when();
                drop(guard);
                for page in &mut self.pages[from..from + pages] {
                    *page.count(when) -= 1;
                }
            }
            Step::Leak(i) if !self.guards.is_empty() => {
                let (from, pages, guard) = self.guards.swap_remove(i % self.guards.len());
                let when = guard.when();
                guard.leak();
                for page in &mut self.pages[from..from + pages] {
                    *page.count(when) -= 1;
                    *page.flag(when) = true;
                }
            }
            Step::Set(i, when) if !self.guards.is_empty() => {
                let i = i % self.guards.len();
                let (from, pages, before) =
                    (self.guards[i].0, self.guards[i].1, self.guards[i].2.when());
                let expected = match when == before {
                    true => Ok(()),
                    false => self.verdict(from, pages, when),
                };
                let result = self.guards[i].2.set(when);
                prop_assert_eq!(result.as_ref().map(|_| ()).map_err(|e| e.kind()), expected);
                if result.is_ok() {
                    for page in &mut self.pages[from..from + pages] {
                        *page.count(before) -= 1;
                        *page.count(when) += 1;
                    }
                }
            }
            Step::Mlock2(from, pages, when) => {
                let result = lock::mlock2(self.area.page(from), pages * PAGE, when);
                let expected = self.verdict(from, pages, when);
                prop_assert_eq!(result.as_ref().map(|_| ()).map_err(|e| e.kind()), expected);
                if result.is_ok() {
                    for page in &mut self.pages[from..from + pages] {
                        *page.flag(when) = true;
                    }
                }
            }
            Step::Munlock2(from, pages, now, on_fault) => {
                let result =
                    lock::munlock2(self.area.page(from), pages * PAGE, Kinds { now, on_fault });
                let expected = match (now || on_fault, (from..from + pages).contains(&HOLE)) {
                    (false, _) => Err(ErrorKind::BadRange),
                    (_, true) => Err(ErrorKind::NotMapped),
                    _ => Ok(()),
                };
                prop_assert_eq!(result.as_ref().map(|_| ()).map_err(|e| e.kind()), expected);
                if result.is_ok() {
                    for page in &mut self.pages[from..from + pages] {
                        page.base.now &= !now;
                        page.base.on_fault &= !on_fault;
                    }
                }
            }
            Step::Foreign(from, pages, when) => {
                let inside = from..from + pages;
                let guarded = self.pages[inside.clone()].iter().any(|p| p.now + p.on_fault > 0);
                let ours = self.pages[inside.clone()].iter().any(|p| p.ours);
                let fits = self.verdict(from, pages, When::Now).is_ok();
                if guarded || ours || !fits {
                    return Ok(());
                }
                match when {
                    Some(When::Now) => self.area.mlock(from, pages),
                    Some(When::OnFault) => self.area.mlock_on_fault(from, pages),
                    None => self.area.munlock(from, pages),
                }
                .unwrap();
                for page in &mut self.pages[inside] {
                    page.base = Kinds {
                        now: when == Some(When::Now),
                        on_fault: when == Some(When::OnFault),
                    };
                }
            }
            Step::LockAll(on_fault) => {
                lock::mlockall(Scope { current: true, future: false, on_fault }).unwrap();
                self.only_area = false;
                let when = if on_fault { When::OnFault } else { When::Now };
                for page in &mut self.pages {
                    *page.flag(when) = true;
                }
            }
            Step::UnlockAll(current, future, on_fault) if current || future || on_fault => {
                lock::munlockall2(Scope { current, future, on_fault }).unwrap();
                for page in &mut self.pages {
                    page.base.now &= !current;
                    page.base.on_fault &= !on_fault;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn remember(&mut self, step: &Step) {
        for page in &mut self.pages {
            let locked = page.held() != Held::Not;
            page.ours = locked && (page.ours || !matches!(step, Step::Foreign(..)));
        }
    }

    fn agrees(&self, after: &Step) -> Result<(), TestCaseError> {
        let mut expected: Vec<Held> = self.pages.iter().map(|page| page.held()).collect();
        expected[HOLE] = Held::Hole;
        let held = self.area.held();
        prop_assert_eq!(&held, &expected, "after {:?}", after);
        if self.only_area {
            let locked = held.iter().filter(|h| matches!(h, Held::Full | Held::OnFault)).count();
            prop_assert_eq!(vm_lck(), self.charged + (locked * PAGE) as u64, "after {:?}", after);
        }
        Ok(())
    }
}

fn run(whole_process: bool, limit: Option<usize>) {
    // 256 cases unless PROPTEST_CASES sets another number.
    let config = Config { failure_persistence: None, ..Config::default() };
    let steps = prop::collection::vec(step(whole_process), 1..32);
    let mut runner = TestRunner::new(config);
    let result = runner.run(&steps, |steps| {
        let mut world = World::new(limit);
        for step in steps {
            world.go(step.clone())?;
            world.remember(&step);
            world.agrees(&step)?;
        }
        // All locks are released, and no charge is left behind.
        world.guards.clear();
        for page in &mut world.pages {
            (page.now, page.on_fault) = (0, 0);
        }
        world.agrees(&Step::Drop(0))?;
        lock::munlockall2(Scope { current: true, future: true, on_fault: true }).unwrap();
        prop_assert_eq!(vm_lck(), 0);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn ranges_and_the_whole_process() {
    in_child(this_test!(), &[], || {
        // The limit must not refuse locking everything.
        let everything = lock::account().unwrap();
        if !everything.is_exempt() {
            tenure_testkit::skip!("not exempt from the limit: {everything}");
        }
        run(true, None);
    });
}

#[test]
fn ranges_under_a_limit() {
    as_each_user(this_test!(), || {
        set_limit(8 * PAGE as u64, 8 * PAGE as u64);
        run(false, Some(8));
    });
}
