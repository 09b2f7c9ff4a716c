//! The calls by which the rest of tracking reaches its task on the background thread.

use crate::runtime::services::ServiceId;
use crate::runtime::worker;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The service's number plus one; 0 before it is registered.
/// For the whole process, like the register.
static SERVICE: AtomicUsize = AtomicUsize::new(0);

/// Stores the service's number.
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

/// [`stir`], and starts the background thread if there is none and it [may be
/// started](worker::start_unasked). Without it no range would be offered, and the program could be
/// killed for want of memory. The caller holds no lock and no claim.
pub(super) fn stir_or_start() {
    if !worker::running() {
        worker::start_unasked("tracking");
    }
    stir();
}

/// A range became known or was taken back: wakes a background thread that sleeps without a timeout.
pub(super) fn stir() {
    if let Some(service) = service() {
        worker::stir(service);
    }
}
