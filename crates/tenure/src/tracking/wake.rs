//! How the rest of tracking reaches its task on the background thread.

use crate::runtime::services::ServiceId;
use crate::runtime::worker;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One more than the service's number; 0 before it is registered.
/// For the whole process: as the register.
static SERVICE: AtomicUsize = AtomicUsize::new(0);

/// The service has this number.
pub(super) fn is_registered(service: ServiceId) {
    if SERVICE.load(Ordering::Relaxed) == 0 {
        SERVICE.store(service.0 + 1, Ordering::Release);
    }
}

fn service() -> Option<ServiceId> {
    SERVICE.load(Ordering::Acquire).checked_sub(1).map(ServiceId)
}

/// Has the background thread scan now, if there is one.
pub(super) fn wake() {
    if let Some(service) = service().filter(|_| worker::running()) {
        worker::call(service);
    }
}

/// A range became known or was taken back: a background thread that sleeps for good looks again.
pub(super) fn stir() {
    if let Some(service) = service() {
        worker::stir(service);
    }
}
