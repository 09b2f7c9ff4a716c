//! The settings of shared volatile memory.

use super::function::Function;
use super::layout::{Shape, Use};
use super::object::SharedVolatile;
use super::touch;
use crate::error::{Error, ErrorKind, Result};
use crate::os::shared_file::SharedFile;
use crate::runtime::refills::RefillError;

/// What [`SharedVolatile::new`] leaves at its default.
///
/// ```
/// use tenure::shared::SharedVolatile;
/// let shared = SharedVolatile::builder(64 << 20).chunk_size(2 << 20).processes(200).build()?;
/// assert_eq!(shared.chunks(), 32);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "build() makes the memory"]
pub struct SharedVolatileBuilder {
    len: usize,
    chunk: usize,
    processes: u32,
    refill: Option<Function>,
}

type RefillResult = std::result::Result<(), RefillError>;

/// The default size of a chunk.
const CHUNK: usize = 64 << 10;
/// By default so many processes have it open at most: as many as a record of two cache lines has room for.
const PROCESSES: u32 = 56;

impl SharedVolatileBuilder {
    /// Sets the size of a chunk, a power of two from a page to 1 GiB. The default is 64 KiB. From 2 MiB on a chunk has
    /// huge pages, where the system allows them for shared memory (`shmem_enabled`).
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::builder(1 << 20).chunk_size(4096).build()?;
    /// assert_eq!(shared.chunks(), 256);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn chunk_size(mut self, bytes: usize) -> Self {
        self.chunk = bytes;
        self
    }

    /// Sets how many processes may have the memory open at a time, 1 to 1,024. The default is 56. Each costs two bytes
    /// for each chunk. A fork's child counts, and so does one that is about to call `exec`, until it has.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::builder(1 << 20).processes(300).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn processes(mut self, count: u32) -> Self {
        self.processes = count;
        self
    }

    /// Sets the function that makes chunks that are gone, or that nobody has made yet. `function(chunk, bytes)` makes
    /// the bytes of chunk `chunk`; it is given zeros. It is called when this process pins such a chunk, or when a
    /// thread of this process touches it through [`SharedVolatile::as_ptr`] without a pin. That thread then waits while
    /// the bytes are made on another thread, and goes on.
    ///
    /// A chunk is made by one thread of one process; others that pin or touch it meanwhile wait. If its maker dies, one
    /// of them makes it. A process that opens such memory sets its own function: [`SharedVolatile::set_refill`].
    ///
    /// **What a touch without a pin sees.** Each page is put in place whole, when all of its chunk's bytes are known:
    /// in every process a touch sees what a maker made, and never zeros or half of a page. Pages of a chunk that is
    /// purged and made again in between may be of two makings: pin the chunk to have all of it as one maker left it. A
    /// system call that is given bytes that are gone returns `EFAULT`.
    ///
    /// **If it fails or panics**, the chunk stays gone: the pin returns `EIO`, and the touch raises the SIGBUS that it
    /// would have raised without a function. The next pin or touch tries again.
    ///
    /// The function runs under no lock: it may panic, fork, and use other memory. For touches one thread runs the
    /// functions of the whole process, with the program's descriptors, the usual stack, and all signals blocked but
    /// those that it raises itself. So the function must not wait for a thread that touches such memory without a pin
    /// (for its lock, for instance). A touch of its own chunk, or a touch on that thread of a chunk that another thread
    /// makes, raises SIGBUS. If it pins its own chunk, the pin fails with `EDEADLK`.
    ///
    /// It is [`on_purged_access`](crate::volatile::on_purged_access) and
    /// [`VolatileBuilder::refill`](crate::volatile::VolatileBuilder::refill) in one: a handler for SIGBUS is installed, and what
    /// is said there about handlers of the program's holds. Where userfaultfd is refused
    /// ([`SharedVolatile::is_watched`]) the function is called at pins only.
    ///
    /// ```
    /// use tenure::shared::SharedVolatile;
    /// let tiles = SharedVolatile::builder(1 << 20)
    ///     .refill(|chunk, bytes| {
    ///         bytes.fill(chunk as u8 + 1); // or read a file: any error will do
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// assert_eq!(tiles.pin(3)?.intact().unwrap()[99], 4); // made by the function
    /// tiles.purge_now(0..tiles.chunks())?; // as happens when memory is short
    /// if tiles.is_watched() {
    ///     let first = tiles.as_ptr(3)?;
    ///     // SAFETY: mapped while `tiles` lives; nobody writes to it.
    ///     assert_eq!(unsafe { first.read_volatile() }, 4); // made again
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// A chunk's bytes are made beside it and copied: it takes its size in memory twice for that moment. Its pages are
    /// small ones, also where chunks have huge pages otherwise.
    #[doc(alias = "userfaultfd")]
    #[doc(alias = "SIGBUS")]
    pub fn refill(
        mut self,
        function: impl Fn(usize, &mut [u8]) -> RefillResult + Send + Sync + 'static,
    ) -> Self {
        self.refill = Some(Function::new(function));
        self
    }

    /// Makes the memory. It takes none before the first chunk is made, but 128 bytes for each chunk.
    ///
    /// ```
    /// use tenure::shared::SharedVolatile;
    /// let shared = SharedVolatile::builder(1 << 20).build()?;
    /// assert_eq!(SharedVolatile::builder(0).build().unwrap_err().errno(), 22); // EINVAL
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: a size is none. `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor, no address space. `ENOENT`: there is no
    /// `/proc`. `EAGAIN`: no thread.
    pub fn build(self) -> Result<SharedVolatile> {
        self.build_for("SharedVolatile::new", Use::Chunks)
    }

    pub(super) fn build_for(self, call: &'static str, usage: Use) -> Result<SharedVolatile> {
        let refilled = self.refill.is_some();
        let shape = Shape { refilled, ..Shape::new(call, self.len, self.chunk, self.processes)? };
        let file = SharedFile::make(c"tenure-shared", shape.file())
            .map_err(|(what, errno)| Error::system(call, what, errno))?;
        let shared = SharedVolatile::map(call, file, Some(shape), usage, false)?;
        if let Some(function) = self.refill {
            shared.refill_by(call, function)?;
        }
        Ok(shared)
    }
}

impl SharedVolatile {
    /// Makes memory of `len` bytes, rounded up to whole chunks of 64 KiB, for this process, its children, and whoever
    /// is given the descriptor.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::new(1 << 20)?;
    /// assert_eq!((shared.len(), shared.chunk_size()), (1 << 20, 64 << 10));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SharedVolatileBuilder::build`].
    pub fn new(len: usize) -> Result<SharedVolatile> {
        SharedVolatile::builder(len).build()
    }

    /// Sets what [`SharedVolatile::new`] leaves at its default.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::builder(1 << 20).chunk_size(1 << 16).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn builder(len: usize) -> SharedVolatileBuilder {
        SharedVolatileBuilder { len, chunk: CHUNK, processes: PROCESSES, refill: None }
    }

    /// Sets the function by which this process makes chunks, of memory that it has opened: see
    /// [`SharedVolatileBuilder::refill`](super::SharedVolatileBuilder::refill). A child made by fork has its parent's.
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use tenure::shared::SharedVolatile;
    /// let make = |_: usize, bytes: &mut [u8]| Ok(bytes.fill(7));
    /// let shared = SharedVolatile::builder(1 << 20).refill(make).build()?;
    /// // SAFETY: only this program has the descriptor.
    /// let other = unsafe { SharedVolatile::open(shared.as_fd().try_clone_to_owned().unwrap()) }?;
    /// assert_eq!(other.pin(0).unwrap_err().errno(), 13); // EACCES: it cannot make the chunk
    /// other.set_refill(make)?;
    /// assert_eq!(other.pin(0)?.intact().unwrap()[0], 7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the memory was made without a refill function, so its makers write where others may touch.
    /// `EBUSY`: it has one. `EACCES`: open to read only. Those of `sigaction(2)`.
    pub fn set_refill(
        &self,
        function: impl Fn(usize, &mut [u8]) -> RefillResult + Send + Sync + 'static,
    ) -> Result<()> {
        self.refill_by("SharedVolatile::set_refill", Function::new(function))
    }

    fn refill_by(&self, call: &'static str, function: Function) -> Result<()> {
        let region = self.region_shared();
        let refused = |kind, why: &'static str, remedy: &'static str| {
            Err(Error::new(kind, call, why, remedy))
        };
        if !region.shape.refilled {
            let why = "the memory was made without a refill function";
            return refused(
                ErrorKind::Unsupported,
                why,
                "make it with SharedVolatileBuilder::refill",
            );
        }
        if region.read_only {
            return refused(
                ErrorKind::NoAccess,
                "the memory is open to read only",
                "open it to write",
            );
        }
        touch::listen().map_err(|errno| Error::system(call, "sigaction(SIGBUS)", errno))?;
        if !region.refill.set(&function) {
            return refused(ErrorKind::Busy, "it has a refill function", "set one once");
        }
        self.keep(function);
        touch::add(region);
        Ok(())
    }
}
