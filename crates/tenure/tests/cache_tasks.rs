//! Values that tasks make: once, without a blocked thread, whatever happens to the task.

mod promise_kit;

use promise_kit::{forked, promised, Ended};
use std::cell::Cell;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use tenure::{Cache, Error, ErrorKind};
use tenure_testkit::this_test;

/// Counts how often a task was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A runtime of one task.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

fn poll<F: Future + ?Sized>(task: Pin<&mut F>, woken: &Arc<Woken>) -> Poll<F::Output> {
    task.poll(&mut Context::from_waker(&Waker::from(woken.clone())))
}

/// Ready when `open` is set; the test polls it again then.
fn gate(open: &Cell<bool>) -> impl Future<Output = ()> + '_ {
    poll_fn(|_| if open.get() { Poll::Ready(()) } else { Poll::Pending })
}

#[test]
fn one_task_makes_and_the_others_are_woken_once() {
    let (cache, open, made) = (Cache::<u64>::new().unwrap(), Cell::new(false), Cell::new(0));
    let make = || {
        let (open, made) = (&open, &made);
        async move {
            gate(open).await;
            made.set(made.get() + 1);
            vec![7; 5000]
        }
    };
    let mut maker = Box::pin(cache.get_or_insert_async(&1, make()));
    assert!(poll(maker.as_mut(), &Arc::default()).is_pending());
    let mut others: Vec<_> = (0..100)
        .map(|_| (Box::pin(cache.get_or_insert_async(&1, make())), Arc::<Woken>::default()))
        .collect();
    for (task, woken) in &mut others {
        // Runtimes also poll without a wake.
        for _ in 0..3 {
            assert!(poll(task.as_mut(), woken).is_pending());
        }
    }
    // Another key's value needs no wait.
    assert_eq!(block_on(cache.get_or_insert_async(&2, async { vec![2] })).unwrap()[..], [2]);
    open.set(true);
    assert!(others.iter().all(|(_, woken)| woken.0.load(Ordering::SeqCst) == 0));
    let Poll::Ready(Ok(value)) = poll(maker.as_mut(), &Arc::default()) else { panic!("made") };
    assert_eq!(value[..], [7; 5000]);
    for (task, woken) in &mut others {
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let Poll::Ready(Ok(value)) = poll(task.as_mut(), woken) else { panic!("it is there") };
        assert_eq!(value[..], [7; 5000]);
    }
    assert_eq!(made.get(), 1);
}

#[test]
fn when_the_maker_is_dropped_or_fails_another_task_makes_the_value() {
    let (cache, open) = (Cache::<u64>::new().unwrap(), Cell::new(false));
    let failing = async {
        gate(&open).await;
        Err::<Vec<u8>, std::io::Error>(std::io::ErrorKind::Other.into())
    };
    let mut dropped = Box::pin(cache.get_or_insert_async(&1, std::future::pending()));
    let mut fails = Box::pin(cache.get_or_try_insert_async(&1, failing));
    let mut makes = Box::pin(cache.get_or_insert_async(&1, async { vec![3; 3] }));
    let (one, two) = (Arc::<Woken>::default(), Arc::<Woken>::default());
    assert!(poll(dropped.as_mut(), &Arc::default()).is_pending());
    assert!(poll(fails.as_mut(), &one).is_pending());
    assert!(poll(makes.as_mut(), &two).is_pending());
    drop(dropped);
    assert_eq!((one.0.load(Ordering::SeqCst), two.0.load(Ordering::SeqCst)), (1, 1));
    assert!(poll(fails.as_mut(), &one).is_pending(), "it makes the value now");
    assert!(poll(makes.as_mut(), &two).is_pending(), "it waits for the other one");
    open.set(true);
    assert!(matches!(poll(fails.as_mut(), &one), Poll::Ready(Err(_))));
    assert_eq!(two.0.load(Ordering::SeqCst), 2);
    assert!(matches!(poll(makes.as_mut(), &two), Poll::Ready(Ok(value)) if value[..] == [3; 3]));
}

#[test]
fn a_value_that_asks_for_itself_is_an_error() {
    fn is_deadlock(error: &Error) -> bool {
        error.kind() == ErrorKind::Deadlock
    }
    let cache = Rc::new(Cache::<u64>::new().unwrap());
    let found = Cell::new(0);
    let value = block_on(cache.get_or_insert_async(&1, async {
        let inner = cache.get_or_insert_async(&1, async { vec![1] }).await;
        found.set(found.get() + usize::from(inner.is_err_and(|error| is_deadlock(&error))));
        // Also through another value, and by a thread's call.
        let other = cache.get_or_insert_async(&2, async {
            let inner = cache.get_or_insert_with(&1, || vec![1]);
            found.set(found.get() + usize::from(inner.is_err_and(|error| is_deadlock(&error))));
            vec![2]
        });
        other.await.unwrap().to_vec()
    }));
    assert_eq!((&value.unwrap()[..], found.get()), (&[2][..], 2));
    // A thread that makes a value and blocks on a task for it.
    let value = cache.get_or_insert_with(&3, || {
        let inner = block_on(cache.get_or_insert_async(&3, async { vec![1] }));
        vec![u8::from(inner.is_err_and(|error| is_deadlock(&error)))]
    });
    assert_eq!(value.unwrap()[..], [1]);
}

#[test]
fn a_thread_waits_for_a_task_and_a_task_for_a_thread() {
    let cache = Cache::<u64>::new().unwrap();
    let open = Cell::new(false);
    let mut maker = Box::pin(cache.get_or_insert_async(&1, async {
        gate(&open).await;
        vec![1; 1]
    }));
    assert!(poll(maker.as_mut(), &Arc::default()).is_pending());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| cache.get_or_insert_with(&1, || vec![2; 2]).unwrap().len());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!thread.is_finished());
        open.set(true);
        assert!(poll(maker.as_mut(), &Arc::default()).is_ready());
        assert_eq!(thread.join().unwrap(), 1);

        let (begun, begin) = std::sync::mpsc::channel();
        let cache = &cache;
        scope.spawn(move || {
            cache.get_or_insert_with(&2, || {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                vec![2; 2]
            })
        });
        begin.recv().unwrap();
        let value = block_on(cache.get_or_insert_async(&2, async { vec![3; 3] })).unwrap();
        assert_eq!(value.len(), 2);
    });
}

/// Tasks in threads request few keys, which are removed all the time, and some tasks are dropped in
/// the middle: no wake is lost, or this would hang, and no value is wrong.
#[test]
fn many_tasks_on_many_threads() {
    let cache = Cache::<u64>::new().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                for turn in 0..20_000 {
                    let key = (turn * 5 + thread) % 3;
                    let yields = Cell::new((turn + thread) % 4);
                    let make = async {
                        // Ready after so many polls.
                        poll_fn(|context| match yields.replace(yields.get().saturating_sub(1)) {
                            0 => Poll::Ready(()),
                            _ => {
                                context.waker().wake_by_ref();
                                Poll::Pending
                            }
                        })
                        .await;
                        vec![key as u8; 300]
                    };
                    if turn % 7 == 0 {
                        let mut task = Box::pin(cache.get_or_insert_async(&key, make));
                        let _ = poll(task.as_mut(), &Arc::default());
                        continue;
                    }
                    let value = block_on(cache.get_or_insert_async(&key, make)).unwrap();
                    assert_eq!(value[..], [key as u8; 300]);
                    if turn % 2 == 0 {
                        cache.remove(&key);
                    }
                }
            });
        }
    });
}

#[test]
fn the_future_may_go_from_thread_to_thread() {
    fn is_send<T: Send>(future: T) -> T {
        future
    }
    let cache = Arc::new(Cache::<String>::new().unwrap());
    let task = is_send(async move {
        let page = cache.get_or_insert_async("page", async { b"<html>".to_vec() }).await;
        page.unwrap().into_owned()
    });
    let task = std::thread::spawn(|| block_on(task));
    assert_eq!(task.join().unwrap()[..], *b"<html>");
}

/// Counts the wakers that are alive: clones are one.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn waker(alive: &Arc<AtomicUsize>) -> Waker {
        alive.fetch_add(1, Ordering::SeqCst);
        Waker::from(Arc::new(Counted(alive.clone())))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_task_that_waits_keeps_its_last_waker_and_none_when_it_is_dropped() {
    let cache = Cache::<u64>::new().unwrap();
    let alive = Arc::<AtomicUsize>::default();
    let ask = || Box::pin(cache.get_or_insert_async(&1, std::future::pending()));
    let mut maker = ask();
    assert!(poll(maker.as_mut(), &Arc::default()).is_pending());
    let mut waits = ask();
    let (first, second) = (Arc::<Woken>::default(), Arc::<Woken>::default());
    for _ in 0..100 {
        let waker = Counted::waker(&alive);
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    for _ in 0..100 {
        let (waker, mut given_up) = (Counted::waker(&alive), ask());
        assert!(given_up.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    assert!(poll(waits.as_mut(), &first).is_pending());
    assert!(poll(waits.as_mut(), &second).is_pending());
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    drop(maker);
    let woken = [first, second].map(|woken| woken.0.load(Ordering::SeqCst));
    assert_eq!(woken, [0, 1], "the last one");
}

#[test]
fn wakers_that_panic_hinder_nobody() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker's panic");
        }
    }
    let (cache, open) = (Cache::<u64>::new().unwrap(), Cell::new(false));
    let mut maker = Box::pin(cache.get_or_insert_async(&1, async {
        gate(&open).await;
        vec![1]
    }));
    assert!(poll(maker.as_mut(), &Arc::default()).is_pending());
    let ask = || Box::pin(cache.get_or_insert_async(&1, async { vec![2] }));
    let (mut panicking, mut last) = ([ask(), ask()], ask());
    let woken = Arc::<Woken>::default();
    assert!(poll(last.as_mut(), &woken).is_pending());
    for task in &mut panicking {
        let waker = Waker::from(Arc::new(Panics));
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    open.set(true);
    assert!(matches!(poll(maker.as_mut(), &woken), Poll::Ready(Ok(value)) if value[..] == [1]));
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
}

#[test]
fn a_make_that_asks_for_its_key_when_it_is_dropped_gets_an_error() {
    struct Asks<'a>(&'a Cache<u64>, &'a Cell<u32>);
    impl Drop for Asks<'_> {
        fn drop(&mut self) {
            let asked = self.0.get_or_insert_with(&1, || vec![2]);
            if asked.is_err_and(|error| error.kind() == ErrorKind::Deadlock) {
                self.1.set(self.1.get() + 1);
            }
        }
    }
    promised(this_test!(), || {
        let (cache, found) = (Cache::<u64>::new().unwrap(), Cell::new(0));
        let asks = Asks(&cache, &found);
        let mut never = Box::pin(cache.get_or_insert_async(&1, async move {
            let _asks = &asks;
            std::future::pending().await
        }));
        assert!(poll(never.as_mut(), &Arc::default()).is_pending());
        drop(never);
        assert_eq!(found.get(), 1, "dropped in the middle");
        let asks = Asks(&cache, &found);
        let make = poll_fn(move |_| {
            let _asks = &asks;
            Poll::Ready(vec![1])
        });
        assert_eq!(block_on(cache.get_or_insert_async(&1, make)).unwrap()[..], [1]);
        assert_eq!(found.get(), 2, "dropped at its end");
    });
}

#[test]
fn a_child_goes_on_with_its_parents_tasks() {
    promised(this_test!(), || {
        let (cache, open) = (Cache::<u64>::new().unwrap(), Cell::new(false));
        let mut maker = Box::pin(cache.get_or_insert_async(&1, async {
            gate(&open).await;
            b"old".to_vec()
        }));
        let mut waits = Box::pin(cache.get_or_insert_async(&1, async { b"own".to_vec() }));
        assert!(poll(maker.as_mut(), &Arc::default()).is_pending());
        assert!(poll(waits.as_mut(), &Arc::default()).is_pending());
        let ended = forked(|| {
            // Another thread's task may make the value.
            let Poll::Ready(value) = poll(waits.as_mut(), &Arc::default()) else { panic!("waits") };
            assert_eq!(value.unwrap()[..], *b"own");
            cache.insert(1, b"newer").unwrap();
            open.set(true);
            let Poll::Ready(value) = poll(maker.as_mut(), &Arc::default()) else { panic!("open") };
            assert_eq!(value.unwrap()[..], *b"old");
            assert_eq!(cache.get(&1).unwrap()[..], *b"newer");
        });
        assert_eq!(ended, Ended::Well);
        open.set(true);
        assert!(poll(maker.as_mut(), &Arc::default()).is_ready());
        assert_eq!(cache.get(&1).unwrap()[..], *b"old");
    });
}

/// Tasks change their wakers and are dropped while the value is made: the last waker of each
/// remaining task is woken.
#[test]
fn no_wake_is_lost_while_wakers_change() {
    let cache = Cache::<u64>::new().unwrap();
    for round in 0..3_000_u64 {
        let key = round;
        let open = std::sync::atomic::AtomicBool::new(false);
        let make = poll_fn(|_| match open.load(Ordering::SeqCst) {
            true => Poll::Ready(vec![1]),
            false => Poll::Pending,
        });
        let mut maker = Box::pin(cache.get_or_insert_async(&key, make));
        assert!(poll(maker.as_mut(), &Arc::default()).is_pending());
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let (cache, key) = (&cache, &key);
                scope.spawn(move || {
                    for turn in 0..(round + thread) % 7 {
                        let mut task = Box::pin(cache.get_or_insert_async(key, async { vec![1] }));
                        for _ in 0..=turn % 3 {
                            if poll(task.as_mut(), &Arc::default()).is_ready() {
                                return;
                            }
                        }
                        if turn == 4 {
                            assert_eq!(block_on(task).unwrap()[..], [1]);
                            return;
                        }
                    }
                    let value = block_on(cache.get_or_insert_async(key, async { vec![1] }));
                    assert_eq!(value.unwrap()[..], [1]);
                });
            }
            open.store(true, Ordering::SeqCst);
            assert!(poll(maker.as_mut(), &Arc::default()).is_ready());
        });
    }
}
