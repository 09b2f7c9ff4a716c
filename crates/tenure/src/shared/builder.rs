//! The settings of shared volatile memory.

use super::function::Function;
use super::layout::{Shape, Use};
use super::object::SharedVolatile;
use super::touch;
use crate::error::{Error, ErrorKind, Result};
use crate::os::shared_file::SharedFile;
use crate::runtime::refills::RefillError;

/// The settings that [`SharedVolatile::new`] leaves at their defaults.
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
/// By default this many processes may have the memory open: a record of two cache lines has room
/// for them.
const PROCESSES: u32 = 56;

impl SharedVolatileBuilder {
    /// Sets the size of a chunk: a power of two, from a page to 1 GiB. The default is 64 KiB. A
    /// chunk of 2 MiB or more has huge pages, if the system allows them for shared memory
    /// (`shmem_enabled`).
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

    /// Sets how many processes may have the memory open at a time, 1 to 1,024. The default is 56.
    /// Each process costs two bytes for each chunk. The child of a fork counts, also a child that
    /// is about to call `exec`, until it has.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::builder(1 << 20).processes(300).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn processes(mut self, count: u32) -> Self {
        self.processes = count;
        self
    }

    /// Sets the function that makes chunks that are gone or were never made.
    /// `function(chunk, bytes)` makes the bytes of chunk `chunk`; it gets zeros. tenure calls it
    /// when this process pins such a chunk, or when a thread of this process touches it through
    /// [`SharedVolatile::as_ptr`] without a pin. That thread waits while another thread makes the
    /// bytes, and then goes on.
    ///
    /// One thread of one process makes a chunk. Other threads that pin or touch it meanwhile wait.
    /// If the maker dies, one of them makes the chunk. A process that opens such memory sets its
    /// own function: [`SharedVolatile::set_refill`].
    ///
    /// **What a touch without a pin sees.** Each page is put in place whole, after all bytes of its
    /// chunk are made. So in every process a touch sees bytes that a maker made, and never zeros or
    /// half a page. A process that may not use userfaultfd could not keep that: it cannot open the
    /// memory, and a child that gets none can neither pin nor touch it (SIGSEGV), except the made
    /// chunks that it has inherited pinned. `mlockall(MCL_CURRENT)` breaks it, and a child that closes
    /// tenure's descriptors before it calls [`start_worker`](super::start_worker). If a chunk is purged
    /// and made again meanwhile, its pages may come from two makers: pin the chunk to see the bytes of
    /// a single maker. A system call that gets the address of bytes that are gone returns `EFAULT`.
    ///
    /// **If the function fails or panics**, the chunk stays gone. The pin returns `EIO`, and the
    /// touch raises the SIGBUS that it would raise without a function. The next pin or touch tries
    /// again.
    ///
    /// **A thread that blocks SIGBUS**, or is in a signal handler whose mask has it, must not touch a
    /// purged chunk: the kernel ends the process with SIGBUS, and calls no handler. Private memory's
    /// refill functions need no signal.
    ///
    /// The function runs under no lock: it may panic, fork, and use other memory. For touches, one
    /// thread runs the functions of the whole process. It has the program's descriptors, the usual
    /// stack, and all signals blocked except those that it raises itself. So the function must not
    /// wait for a thread that touches such memory without a pin (for its lock, for instance). A
    /// touch of its own chunk raises SIGBUS, and so does a touch on that thread of a chunk that
    /// another thread makes. If the function pins its own chunk, the pin fails with `EDEADLK`.
    ///
    /// It is [`on_purged_access`](crate::volatile::on_purged_access) and
    /// [`VolatileBuilder::refill`](crate::volatile::VolatileBuilder::refill) in one. It installs a
    /// handler for SIGBUS, and the rules there about the program's own handlers apply. If the
    /// kernel refuses userfaultfd to the process that makes the memory
    /// ([`SharedVolatile::is_watched`]), tenure calls the function only at pins, and a touch without
    /// one may read zeros.
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
    ///     // SAFETY: mapped while `tiles` lives; no thread writes to it.
    ///     assert_eq!(unsafe { first.read_volatile() }, 4); // made again
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// The function makes a chunk's bytes beside the chunk, and tenure copies them: for that moment
    /// the chunk takes its size in memory twice. Its pages are small, even if chunks otherwise have
    /// huge pages.
    #[doc(alias = "userfaultfd")]
    #[doc(alias = "SIGBUS")]
    pub fn refill(
        mut self,
        function: impl Fn(usize, &mut [u8]) -> RefillResult + Send + Sync + 'static,
    ) -> Self {
        self.refill = Some(Function::new(function));
        self
    }

    /// Makes the memory. Before the first chunk is made it takes only 128 bytes for each chunk.
    ///
    /// ```
    /// use tenure::shared::SharedVolatile;
    /// let shared = SharedVolatile::builder(1 << 20).build()?;
    /// assert_eq!(SharedVolatile::builder(0).build().unwrap_err().errno(), 22); // EINVAL
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: a size is not possible. `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor, no address
    /// space. `ENOENT`: there is no `/proc`. `EAGAIN`: no thread.
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
    /// Makes memory of `len` bytes, rounded up to whole chunks of 64 KiB, for this process, its
    /// children, and each process that gets the descriptor.
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

    /// Returns a builder for the settings that [`SharedVolatile::new`] leaves at their defaults.
    ///
    /// ```
    /// let shared = tenure::shared::SharedVolatile::builder(1 << 20).chunk_size(1 << 16).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn builder(len: usize) -> SharedVolatileBuilder {
        SharedVolatileBuilder { len, chunk: CHUNK, processes: PROCESSES, refill: None }
    }

    /// Sets the function by which this process makes chunks of memory that it has opened: see
    /// [`SharedVolatileBuilder::refill`](super::SharedVolatileBuilder::refill). A forked child has
    /// its parent's function.
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
    /// `EOPNOTSUPP`: the memory was made without a refill function, so makers write to bytes that
    /// other processes may touch. `EBUSY`: it has a function already. `EACCES`: it is open only for
    /// reading. The errors of `sigaction(2)`.
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
