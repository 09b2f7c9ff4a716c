//! What shared volatile memory does over forks and in the background.

use super::layout::{Shape, Use};
use super::region::Region;
use super::{list, purge, room, touch};
use crate::error::Result;
use crate::os::shared_file::SharedFile;
use crate::runtime::lock::Rank;
use crate::runtime::services::Service;
use crate::runtime::{fork, worker};
use crate::tracking;
use std::sync::Arc;

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
    task: Some(purge::visit),
    on_pressure: Some(purge::on_pressure),
    ..Service::named("shared", &[Rank::SharedList, Rank::SharedRoom])
};

/// Maps a file, and lists its region for the worker. `new`: the shape of a new file.
pub(super) fn open(
    call: &'static str,
    file: SharedFile,
    new: Option<Shape>,
    usage: Use,
    read_only: bool,
) -> Result<Arc<Region>> {
    tracking::ready_to_watch(call)?;
    let service = fork::register(&SERVICE);
    let region = Arc::new(Region::map(call, file, new, usage, read_only)?);
    list::add(&region, || region.slots.enter(call, &region, new.is_some()))?;
    // On the worker's thread: the program cannot close the descriptors in that thread's table.
    let _ = worker::on_worker(|| region.watch());
    worker::call(service);
    Ok(region)
}
