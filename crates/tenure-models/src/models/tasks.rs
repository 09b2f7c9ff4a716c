//! Tasks that wait for an event, with wakers that change and places that are taken again.

use super::tasks::Tasks;
use crate::model::{check, lend, together};
use crate::sync::Order;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The tasks, and the wakers of those that still wait.
struct List {
    tasks: Tasks,
    waiting: Mutex<Vec<Arc<Woken>>>,
}

impl List {
    /// A task that is polled with so many wakers, and then continues to wait.
    fn wait(&self, wakers: u32) {
        let mut task = Box::pin(self.tasks.end(|| true));
        let mut last = Arc::default();
        for _ in 0..wakers {
            last = Arc::<Woken>::default();
            let waker = Waker::from(Arc::clone(&last));
            if task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
                return;
            }
        }
        self.waiting.lock().unwrap().push(last);
        // Another thread has it.
        std::mem::forget(task);
    }

    /// A task that is dropped.
    fn give_up(&self) {
        let mut task = Box::pin(self.tasks.end(|| true));
        let _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

fn list(act: impl FnOnce(&'static List)) {
    lend(List { tasks: Tasks::new(), waiting: Mutex::default() }, |list| {
        act(list);
        let waiting = list.waiting.lock().unwrap();
        assert!(waiting.iter().all(|woken| woken.0.load(Ordering::Relaxed) == 1));
        drop(waiting);
        let mut late = Box::pin(list.tasks.end(|| true));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    });
}

#[test]
fn a_task_whose_waker_changes_is_woken() {
    check("tasks, a waker that changes and the event", 3, Order::Weak, || {
        list(|list| together!(|| list.wait(3); list.tasks.wake_all()));
    });
}

#[test]
fn a_place_that_is_taken_again_is_woken() {
    check("tasks, a place that is taken again and the event", 3, Order::Weak, || {
        list(|list| {
            let both = || {
                list.give_up();
                list.wait(2);
            };
            together!(both; list.tasks.wake_all());
        });
    });
}

#[test]
fn two_tasks_do_not_share_a_place() {
    check("tasks, two that come while one goes, and the event", 2, Order::Weak, || {
        list(|list| {
            list.give_up();
            together!(|| list.wait(1), || list.wait(1); list.tasks.wake_all());
        });
    });
}

#[test]
fn a_place_that_one_task_leaves_is_anothers() {
    check("tasks, one that goes, one that comes, and the event", 3, Order::Weak, || {
        list(|list| together!(|| list.give_up(), || list.wait(1); list.tasks.wake_all()));
    });
}
