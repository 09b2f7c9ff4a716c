//! A hundred thousand objects of one page each, and a thousand threads that pin at once.

use crate::model::Found;
use crate::objects::{fill, look};
use crate::rng::{mix, Rng};
use crate::setting::judge;
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{doing, wrong};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tenure::Volatile;

/// An object, and the version that was written last.
struct One {
    volatile: Volatile,
    version: u64,
}

/// Many of them, each for one thread at a time.
pub struct Many {
    salt: u64,
    objects: Vec<Mutex<Option<One>>>,
}

const PINNERS: usize = 1000;
const STACK: usize = 64 << 10;

impl Many {
    /// So many places. They are filled as they are used.
    pub fn new(salt: u64, count: usize) -> Many {
        Many { salt, objects: (0..count).map(|_| Mutex::new(None)).collect() }
    }

    fn salt_of(&self, object: usize) -> u64 {
        mix(self.salt, object as u64)
    }

    /// Some operations that the random numbers choose.
    pub fn step(&self, rng: &mut Rng) {
        for _ in 0..64 {
            let object = rng.below(self.objects.len());
            let place = &self.objects[object];
            let Ok(mut one) = place.try_lock() else { continue };
            match &mut *one {
                None => *one = self.make(object),
                Some(known) => match rng.below(40) {
                    0 => {
                        doing!("drop of one of many objects");
                        *one = None;
                    }
                    1..=9 => self.write(object, known),
                    _ => self.check(object, known),
                },
            }
        }
    }

    fn make(&self, object: usize) -> Option<One> {
        doing!("Volatile::new, one of many");
        match Volatile::new(page_bytes()) {
            Ok(volatile) => {
                let mut one = One { volatile, version: 1 };
                self.write(object, &mut one);
                Some(one)
            }
            Err(error) => {
                // Half of the mappings that the kernel allows belong to the program.
                judge("Volatile::new", &error, &[libc::ENOMEM]);
                None
            }
        }
    }

    fn write(&self, object: usize, one: &mut One) {
        doing!("Volatile::pin_mut, one of many");
        match one.volatile.pin_mut() {
            Ok(mut guard) => {
                one.version += 1;
                fill(&mut guard, self.salt_of(object), 0, one.version);
                guard.restored();
            }
            Err(error) => judge("Volatile::pin_mut", &error, &[]),
        }
    }

    fn check(&self, object: usize, one: &mut One) {
        doing!("Volatile::pin, one of many");
        let lost = match one.volatile.pin() {
            Ok(guard) => {
                let lost = !guard.lost().is_empty();
                let found = look(&guard, self.salt_of(object), 0, one.version);
                let right = if lost { Found::Zeros } else { Found::Expected };
                if found != right {
                    wrong!("object {object} of many, said to be lost: {lost}: {found:?}");
                }
                lost
            }
            Err(error) => return judge("Volatile::pin", &error, &[]),
        };
        add(&tally().purged, u64::from(lost));
        add(&tally().reports, u64::from(lost));
        if lost {
            self.write(object, one);
        }
    }

    /// A thousand threads pin the existing objects at once, and all hold their pins before the
    /// first one unpins.
    pub fn crowd(&self, rng: &mut Rng) {
        doing!("a thousand threads that pin");
        let (begun, let_go) = (AtomicUsize::new(0), AtomicBool::new(false));
        let first = rng.below(self.objects.len());
        let started = std::thread::scope(|scope| {
            let mut started = 0;
            for n in 0..PINNERS {
                // Four of them share an object. One thread at a time may change it, so they take
                // turns.
                let object = (first + n / 4) % self.objects.len();
                let (begun, let_go) = (&begun, &let_go);
                let pinner = move || self.pin_and_wait(object, begun, let_go);
                let thread = std::thread::Builder::new().stack_size(STACK);
                // As many threads as the machine allows.
                if thread.spawn_scoped(scope, pinner).is_err() {
                    break;
                }
                started += 1;
            }
            let patience = sys::now_ms() + 2000;
            while begun.load(Ordering::Acquire) < started && sys::now_ms() < patience {
                sys::nap_us(500);
            }
            let_go.store(true, Ordering::Release);
            started
        });
        add(&tally().operations, started as u64);
    }

    fn pin_and_wait(&self, object: usize, begun: &AtomicUsize, let_go: &AtomicBool) {
        let place = &self.objects[object];
        let Ok(mut one) = place.try_lock() else {
            begun.fetch_add(1, Ordering::AcqRel);
            return;
        };
        if one.is_none() {
            *one = self.make(object);
        }
        if let Some(one) = &mut *one {
            self.check(object, one);
            match one.volatile.pin() {
                Err(error) => judge("Volatile::pin", &error, &[]),
                Ok(guard) => {
                    let lost = !guard.lost().is_empty();
                    begun.fetch_add(1, Ordering::AcqRel);
                    while !let_go.load(Ordering::Acquire) {
                        sys::nap_us(1000);
                    }
                    let right = if lost { Found::Zeros } else { Found::Expected };
                    let found = look(&guard, self.salt_of(object), 0, one.version);
                    if found != right {
                        wrong!("object {object} of many changed while it was pinned: {found:?}");
                    }
                    return;
                }
            }
        }
        begun.fetch_add(1, Ordering::AcqRel);
    }

    /// All of them, once more.
    pub fn finish(&self) {
        for (object, place) in self.objects.iter().enumerate() {
            let mut one = place.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(one) = &mut *one {
                self.check(object, one);
            }
        }
    }
}
