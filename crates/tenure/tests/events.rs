//! Events: their contents, their thread, and the freedom of a subscriber.

mod promise_kit;

use promise_kit::*;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use tenure::events;
use tenure::volatile::Refill;
use tenure::{Cache, ErrorKind, Outcome, Volatile};
use tenure_testkit::this_test;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event that was sent.
#[derive(Clone, Debug)]
struct Seen {
    thread: String,
    level: Level,
    message: String,
    fields: BTreeMap<&'static str, String>,
}

impl Seen {
    fn number(&self, field: &str) -> u64 {
        self.fields[field].parse().unwrap()
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => _ = self.fields.insert(name, format!("{value:?}")),
        }
    }
}

/// Keeps all events of tenure.
struct Log;

static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
/// The subscriber's action for each event, before it keeps it.
static ACT: OnceLock<fn(&Seen)> = OnceLock::new();

impl Subscriber for Log {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.target() == "tenure"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut seen = Seen {
            thread: std::thread::current().name().unwrap_or_default().to_owned(),
            level: *event.metadata().level(),
            message: String::new(),
            fields: BTreeMap::new(),
        };
        event.record(&mut seen);
        if let Some(act) = ACT.get() {
            act(&seen);
        }
        SEEN.lock().unwrap().push(seen);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

const OFTEN: Duration = Duration::from_millis(10);

fn sending() -> events::Events {
    tracing::subscriber::set_global_default(Log).unwrap();
    events::send(OFTEN).unwrap()
}

/// Waits for an event with this message.
fn event(message: &str) -> Seen {
    let found = || SEEN.lock().unwrap().iter().find(|seen| seen.message == message).cloned();
    assert!(waited(|| found().is_some()), "no `{message}` in {:#?}", SEEN.lock().unwrap());
    found().unwrap()
}

fn all() -> Vec<Seen> {
    SEEN.lock().unwrap().clone()
}

/// Has the kernel take all of an object. `true`: it did.
fn purged(object: &mut Volatile) -> bool {
    object.pin_mut().unwrap().fill(7);
    object.restored();
    object.purge_now().is_ok_and(|gone| gone > 0)
}

#[test]
fn a_purge_is_sent_when_it_was_told() {
    promised(this_test!(), || {
        let _events = sending();
        let mut object = Volatile::new(4 * MIB).unwrap();
        let gone = waited(|| purged(&mut object));
        assert!(gone);
        assert_eq!(object.pin().unwrap().outcome(), Outcome::Purged);
        let told = event("purges were reported");
        assert_eq!(told.level, Level::INFO);
        assert!(told.number("ranges") >= 1 && told.number("bytes") >= PAGE as u64, "{told:?}");
        assert_eq!(event("memory was offered").level, Level::DEBUG);
        assert!(all().iter().all(|seen| seen.thread == "tenure-events"), "{:#?}", all());
    });
}

#[test]
fn a_failed_refill_is_sent_with_its_cause() {
    promised(this_test!(), || {
        let _events = sending();
        let refill = Refill::pages(|_, _| Err("the file is gone".into()));
        let mut object = Volatile::builder(MIB).refill(refill).build().unwrap();
        let gone = waited(|| {
            let made = object.pin_mut().map(|mut pinned| pinned.fill(7));
            made.is_err() || object.purge_now().is_ok_and(|gone| gone > 0)
        });
        assert!(gone);
        assert_eq!(object.pin().unwrap_err().kind(), ErrorKind::RefillFailed);
        let failed = event("refills failed");
        assert_eq!(
            (failed.level, failed.fields["cause"].as_str()),
            (Level::WARN, "\"the file is gone\"")
        );
        assert!(failed.number("failures") >= 1);
    });
}

#[test]
fn what_the_kernel_took_is_sent_when_memory_is_no_longer_short() {
    let fifo = std::env::temp_dir().join(format!("tenure-events-{}", std::process::id()));
    const WATCH: &str = "MEMORY_PRESSURE_WATCH";
    if std::env::var_os(WATCH).is_none() {
        let path = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: a terminated path.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }
    promised_with(this_test!(), &[(WATCH, fifo.to_str().unwrap())], || {
        let mut object = Volatile::new(4 * MIB).unwrap();
        let gone = waited(|| purged(&mut object));
        assert!(gone);
        tracing::subscriber::set_global_default(Log).unwrap();
        // No other look comes before the one for the report.
        let events = events::send(Duration::from_millis(300)).unwrap();
        let named = std::env::var(WATCH).unwrap();
        let mut fifo = std::fs::OpenOptions::new().read(true).write(true).open(named).unwrap();
        fifo.write_all(b"pressure").unwrap();
        assert!(event("memory is short").number("reports") >= 1);
        let over = event("memory is no longer short");
        assert!(over.number("offered_bytes") >= 4 * MIB as u64, "{over:?}");
        assert!(over.number("gone_bytes") >= PAGE as u64, "{over:?}");
        drop(events);
    });
    let _ = std::fs::remove_file(fifo);
}

#[test]
fn the_pool_says_that_it_is_empty_and_that_it_has_ended() {
    promised(this_test!(), || {
        let _events = sending();
        let mut buffer = tenure::pool::Buffer::zeroed(16 * MIB).unwrap();
        buffer.fill(1);
        drop(buffer);
        tenure::pool::trim();
        assert!(event("the pool is empty").number("returned_bytes") >= 16 * MIB as u64);
        assert!(tenure::pool::alloc(usize::MAX / 2, 1, false).is_none());
        assert!(event("the pool could not serve").number("requests") >= 1);
        tenure::pool::end();
        assert_eq!(event("the pool has ended").level, Level::WARN);
    });
}

#[test]
fn missing_features_are_sent_first() {
    // tenure takes this for a kernel without userfaultfd.
    promised_with(this_test!(), &[("TENURE_DETECT", "words")], || {
        let _events = sending();
        let object = Volatile::new(MIB).unwrap();
        object.offer_now().unwrap();
        event("memory was offered");
        let missing = tenure::capabilities().findings().iter();
        let missing = missing.filter(|finding| finding.status != tenure::Status::Works);
        let names: Vec<_> = missing.map(|finding| format!("{:?}", finding.name)).collect();
        let sent = all();
        for (name, seen) in names.iter().zip(&sent) {
            assert_eq!(
                (seen.message.as_str(), &seen.fields["name"]),
                ("a feature is missing", name)
            );
            assert!(seen.fields.contains_key("remedy"));
        }
        let count = sent.iter().filter(|seen| seen.message == "a feature is missing").count();
        assert_eq!(count, names.len());
    });
}

#[test]
fn a_subscriber_may_use_tenure_and_panic() {
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    promised(this_test!(), || {
        let _ = ACT.set(|_| {
            let mut object = Volatile::new(MIB).unwrap();
            purged(&mut object);
            let _ = object.pin().unwrap().outcome();
            let cache = Cache::<usize>::new().unwrap();
            cache.insert(1, &[1; 100_000]).unwrap();
            assert!(cache.get(&1).is_none_or(|value| value[0] == 1));
            drop(tenure::pool::Buffer::zeroed(MIB).unwrap());
            tenure::retire::retire(tenure::Mapping::anonymous(64 * MIB).unwrap()).unwrap();
            tenure::end_background_threads();
            assert_eq!(events::send(OFTEN).unwrap_err().kind(), ErrorKind::Busy);
            ROUNDS.fetch_add(1, Ordering::SeqCst);
            panic!("a subscriber's own");
        });
        std::panic::set_hook(Box::new(|_| {}));
        let events = sending();
        let mut object = Volatile::new(MIB).unwrap();
        // Its own events are events, too, so they never end.
        let done = waited(|| {
            purged(&mut object);
            let _ = object.pin().unwrap().outcome();
            ROUNDS.load(Ordering::SeqCst) >= 20
        });
        assert!(done, "{ROUNDS:?}");
        drop(events);
        let rounds = ROUNDS.load(Ordering::SeqCst);
        purged(&mut object);
        let _ = object.pin().unwrap().outcome();
        std::thread::sleep(5 * OFTEN);
        assert_eq!(ROUNDS.load(Ordering::SeqCst), rounds, "sent after the end");
    });
}

/// A subscriber with a lock that another thread has at the fork; in the child it is held for ever.
#[test]
fn a_child_sends_nothing_and_does_not_wait_for_the_subscriber() {
    static HELD: Mutex<()> = Mutex::new(());
    static IN_CHILD: AtomicUsize = AtomicUsize::new(0);
    promised(this_test!(), || {
        static PARENT: OnceLock<u32> = OnceLock::new();
        let _ = PARENT.set(std::process::id());
        let _ = ACT.set(|_| {
            if PARENT.get() != Some(&std::process::id()) {
                IN_CHILD.fetch_add(1, Ordering::SeqCst);
            }
            drop(HELD.lock());
        });
        let events = sending();
        let refill = Refill::pages(|_, _| Err("no file".into()));
        let mut refilled = Volatile::builder(MIB).refill(refill).build().unwrap();
        refilled.pin_mut().unwrap().fill(7);
        let mut object = Volatile::new(MIB).unwrap();
        let held = HELD.lock().unwrap();
        let ended = forked(|| {
            purged(&mut object);
            let _ = object.pin().unwrap().outcome();
            let _ = refilled.purge_now();
            let _ = refilled.pin();
            let cache = Cache::<usize>::new().unwrap();
            cache.insert(1, b"one").unwrap();
            std::thread::sleep(5 * OFTEN);
            assert_eq!(IN_CHILD.load(Ordering::SeqCst), 0);
        });
        drop(held);
        assert_eq!(ended, Ended::Well);
        assert_eq!(forked(move || drop(events)), Ended::Well); // also in the parent
        let ended = forked(|| {
            let _own = events::send(OFTEN).unwrap();
            let mut object = Volatile::new(MIB).unwrap();
            let sent = waited(|| {
                purged(&mut object);
                let _ = object.pin().unwrap().outcome();
                IN_CHILD.load(Ordering::SeqCst) > 0
            });
            assert!(sent);
        });
        assert_eq!(ended, Ended::Well);
    });
}

#[test]
fn one_at_a_time_and_the_end_sends_what_is_left() {
    promised(this_test!(), || {
        tracing::subscriber::set_global_default(Log).unwrap();
        let events = events::send(Duration::from_secs(3600)).unwrap();
        assert_eq!(events::send(OFTEN).unwrap_err().kind(), ErrorKind::Busy);
        let mut object = Volatile::new(MIB).unwrap();
        let gone = waited(|| purged(&mut object));
        assert!(gone);
        let _ = object.pin().unwrap().outcome();
        drop(events);
        assert!(all().iter().any(|seen| seen.message == "purges were reported"), "{:#?}", all());
        drop(events::send(OFTEN).unwrap());
    });
}
