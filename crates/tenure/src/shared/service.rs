//! What shared volatile memory does over forks and in the background.

use super::layout::{Shape, Use};
use super::region::{needs_userfaultfd, Region};
use super::{list, purge, room, touch};
use crate::error::{Error, Result};
use crate::os::shared_file::SharedFile;
use crate::runtime::lock::Rank;
use crate::runtime::services::Service;
use crate::runtime::{fork, worker};
use crate::tracking::{self, detection};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// For the whole process: the entry of shared memory in the register of services.
pub(super) static SERVICE: Service = Service {
    hold: || {
        list::hold();
        room::hold();
    },
    release: || {
        room::release();
        list::release();
    },
    recover: || {
        list::recover();
        room::recover();
    },
    reset_in_child: |missed| {
        touch::reset_in_child();
        list::in_child(missed);
    },
    task: Some(|| Box::new(purge::visit)),
    on_pressure: Some(purge::on_pressure),
    ..Service::named("shared", &[Rank::SharedList, Rank::SharedRoom])
};

/// How many milliseconds an opener waits for another thread that replaces the userfaultfds.
const PATIENCE: u32 = 500;

/// Maps a file, and lists its region for the worker. `new`: the shape of a new file.
pub(super) fn open(
    call: &'static str,
    file: SharedFile,
    new: Option<Shape>,
    usage: Use,
    read_only: bool,
) -> Result<Arc<Region>> {
    get_ready(call)?;
    let service = fork::register(&SERVICE);
    let mut region = Arc::new(Region::map(call, file, new, usage, read_only)?);
    let is_new = new.is_some();
    list::add(&region, || region.slots.enter(call, &region, is_new))?;
    // On the worker's thread: the program cannot close the descriptors in that thread's table.
    let watch = || worker::on_worker(|| region.watch());
    let mut watched = watch();
    for _ in 0..PATIENCE {
        if watched != Some(Err(Errno::AGAIN)) {
            break;
        }
        // Another thread replaces the userfaultfds.
        std::thread::sleep(Duration::from_millis(1));
        watched = watch();
    }
    let refused = match watched.unwrap_or(Err(Errno::AGAIN)) {
        Err(errno) if detection::is_passing(errno) => {
            Some(Error::system(call, "registering the memory with userfaultfd", errno))
        }
        Err(_) if !is_new && region.needs_watch() => Some(needs_userfaultfd(call)),
        Err(_) => {
            region.tell_unwatched();
            None
        }
        Ok(()) => None,
    };
    if let Some(refused) = refused {
        close(&mut region);
        return Err(refused);
    }
    worker::call(service);
    Ok(region)
}

/// Starts the background thread of this process, which purges shared memory when little is left
/// under this process's limits, and removes the pins of dead processes. A process that makes or
/// opens memory has one. A forked child that goes on after its parent's end (a daemon), or that has
/// a memory cgroup of its own, calls this after the fork, and before it closes descriptors that are
/// not its own (tenure's userfaultfd is one of them). Nothing starts a thread in a child by
/// itself: the child may be about to forbid threads, or to change its namespaces.
///
/// ```
/// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
/// // fork here, and in the child:
/// tenure::shared::start_worker()?;
/// # let _ = shared; Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// Two threads, as for private volatile memory. Nothing if the process has them.
///
/// # Errors
/// `EAGAIN`: no thread could be created. `EMFILE`, `ENFILE`, `ENOMEM`: this process got no
/// userfaultfd. Call again when it may open files.
pub fn start_worker() -> Result<()> {
    let call = "shared::start_worker";
    let service = fork::register(&SERVICE);
    get_ready(call)?;
    worker::start(call)?;
    worker::on_worker(|| list::each(|region| region.watch_again()));
    worker::call(service);
    let Some(errno) = detection::failure() else { return Ok(()) };
    list::each(|region| region.tell_unwatched());
    match detection::is_passing(errno) {
        true => Err(Error::system(call, "opening a userfaultfd", errno)),
        false => Ok(()),
    }
}

/// Makes sure that there is a worker and, where it can be had, a userfaultfd. A child may have closed
/// its descriptors.
fn get_ready(call: &'static str) -> Result<()> {
    tracking::before_claiming();
    tracking::ready_to_watch(call)
}

/// Ends this process's use of a region.
pub(super) fn close(region: &mut Arc<Region>) {
    list::remove(region);
    if let Some(region) = Arc::get_mut(region) {
        region.leave();
    }
    // Here, and not in the drop of the region: the worker may hold the region last, and it has its
    // own descriptor table.
    region.file.close();
}
