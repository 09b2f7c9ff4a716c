//! Memory that processes share: an intact chunk has the bytes that its maker wrote.

use super::calls::{Calls, P};
use super::choose::{check, handle, odd, once_in};
use arbitrary::Unstructured;
use libc::c_int;

const INTACT: u8 = 0;
const BEING_MADE: u8 = 4;

struct Shared {
    at: P,
    /// The checked chunks: the word that the maker wrote last, and this process's pins.
    chunks: Vec<(Option<u64>, usize)>,
    chunk_size: usize,
}

#[derive(Default)]
pub struct All(Vec<Shared>, u64);

impl All {
    pub fn step(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let kind = input.int_in_range(0..=9).unwrap_or(0);
        if kind == 0 {
            return self.make(calls, input);
        }
        let Some(at) = handle(input, self.0.len()) else { return nothing(calls, odd(input)) };
        if kind == 1 && once_in(input, 3) {
            let shared = self.0.swap_remove(at);
            // SAFETY: a live object, which is not used any more.
            unsafe { (calls.shared_free)(shared.at) };
            return Ok(());
        }
        self.1 += 1;
        let shared = &mut self.0[at];
        match kind {
            2..=4 => shared.pin(calls, input, self.1),
            5 => shared.unpin(calls, input),
            6 => shared.wait(calls, input, self.1),
            7 => shared.purge(calls, input),
            8 => shared.change(calls, input, self.1),
            _ => shared.ask(calls, input),
        }
    }

    fn make(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        if self.0.len() >= 2 {
            return Ok(());
        }
        let len = if once_in(input, 6) {
            odd(input)
        } else {
            input.int_in_range(1..=300_000).unwrap_or(1)
        };
        let mut opts = [48, 1 << input.int_in_range(12..=17).unwrap_or(12), 0, 0, 0, 0];
        if once_in(input, 4) {
            opts = [odd(input).min(48) as u64, odd(input) as u64, odd(input) as u64, 0, 0, 0];
        }
        // SAFETY: the structure is at least as long as it says.
        let at = unsafe { (calls.shared_new)(len, opts.as_mut_ptr().cast()) };
        if at.is_null() {
            return Ok(());
        }
        // SAFETY: a live object.
        let (all, chunks, chunk_size) = unsafe {
            ((calls.shared_len)(at), (calls.shared_chunks)(at), (calls.shared_chunk_size)(at))
        };
        if chunks > 64 {
            // SAFETY: a live object, which is not used any more.
            unsafe { (calls.shared_free)(at) };
            return Ok(());
        }
        let chunks = vec![(None, 0); chunks];
        self.0.push(Shared { at, chunks, chunk_size });
        check(all >= len && all % chunk_size == 0, || format!("{all} bytes were made for {len}"))
    }

    pub fn end(self, calls: &Calls) -> Result<(), String> {
        // SAFETY: live objects, which are not used any more; pins end with them.
        self.0.iter().for_each(|shared| unsafe { (calls.shared_free)(shared.at) });
        Ok(())
    }
}

fn nothing(calls: &Calls, chunk: usize) -> Result<(), String> {
    let null = std::ptr::null_mut();
    // SAFETY: the header allows NULL in each, and documents that it is refused.
    let done = unsafe {
        (calls.shared_free)(null);
        [
            (calls.shared_pin)(null, chunk, 1, std::ptr::null_mut()),
            (calls.shared_unpin)(null, chunk, 1),
            (calls.shared_finish)(null, chunk),
            (calls.shared_wait)(null, chunk, -1),
            (calls.shared_fd)(null),
        ]
    };
    check(done == [-1; 5], || format!("NULL: {done:?}"))
}

impl Shared {
    /// Chunks that exist, or that do not.
    fn range(&self, input: &mut Unstructured<'_>) -> (usize, usize) {
        match once_in(input, 8) {
            true => (odd(input), odd(input)),
            false => {
                let first = input.int_in_range(0..=self.chunks.len() - 1).unwrap_or(0);
                (first, input.int_in_range(1..=self.chunks.len() - first).unwrap_or(1))
            }
        }
    }

    /// The first and the last word of a chunk that is pinned.
    fn words(&self, calls: &Calls, chunk: usize) -> [*mut u64; 2] {
        // SAFETY: a live object that has this chunk; both words lie in it.
        unsafe {
            let at = (calls.shared_addr)(self.at, chunk);
            [at.cast(), at.byte_add(self.chunk_size - 8).cast()]
        }
    }

    fn read(&self, calls: &Calls, chunk: usize) -> [u64; 2] {
        // SAFETY: a chunk that is pinned.
        self.words(calls, chunk).map(|word| unsafe { word.read_volatile() })
    }

    fn write(&self, calls: &Calls, chunk: usize, tag: u64) {
        // SAFETY: a chunk that this process has pinned and makes.
        self.words(calls, chunk).into_iter().for_each(|word| unsafe { word.write_volatile(tag) });
    }

    fn pin(&mut self, calls: &Calls, input: &mut Unstructured<'_>, tag: u64) -> Result<(), String> {
        let (first, count) = self.range(input);
        let mut states = vec![99; self.chunks.len()];
        let has_room = count <= states.len();
        let states_at = if has_room { states.as_mut_ptr() } else { std::ptr::null_mut() };
        // SAFETY: a live object, and room for each state, or NULL.
        let done = unsafe { (calls.shared_pin)(self.at, first, count, states_at) };
        if done == -1 {
            return Ok(());
        }
        let end = first.checked_add(count).filter(|end| *end <= self.chunks.len());
        let end = end.ok_or_else(|| format!("{count} chunks from {first} on were pinned"))?;
        for chunk in first..end {
            let state = states[chunk - first];
            self.chunks[chunk].1 += 1;
            match (state, self.chunks[chunk].0) {
                (INTACT, Some(tag)) => {
                    let found = self.read(calls, chunk);
                    check(found == [tag; 2], || {
                        format!("WRONG BYTES: chunk {chunk}: {found:?} for {tag}")
                    })?;
                }
                (INTACT, None) => {
                    return Err(format!("WRONG BYTES: chunk {chunk} is intact unmade"))
                }
                (1..=3, _) => self.made(calls, input, chunk, tag)?,
                (BEING_MADE, _) => return Err(format!("nobody else makes chunk {chunk}")),
                _ => return Err(format!("chunk {chunk} has state {state}")),
            }
        }
        Ok(())
    }

    /// A chunk that this process must make.
    fn made(
        &mut self,
        calls: &Calls,
        input: &mut Unstructured<'_>,
        chunk: usize,
        tag: u64,
    ) -> Result<(), String> {
        let found = self.read(calls, chunk);
        check(found == [0; 2], || format!("WRONG BYTES: a chunk to make has {found:?}"))?;
        self.write(calls, chunk, tag);
        // SAFETY: a live object.
        let (done, is_made) = unsafe {
            match once_in(input, 5) {
                true => ((calls.shared_abandon)(self.at, chunk), false),
                false => ((calls.shared_finish)(self.at, chunk), true),
            }
        };
        check(done == 0, || format!("the end of a making returned {done}"))?;
        self.chunks[chunk].0 = is_made.then_some(tag);
        // The pin of an abandoned chunk gives nothing; it ends like every pin.
        Ok(())
    }

    fn unpin(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let (first, count) = self.range(input);
        // SAFETY: a live object; the call refuses chunks that are not pinned.
        let done = unsafe { (calls.shared_unpin)(self.at, first, count) };
        if count == 0 || first.checked_add(count).is_none_or(|end| end > self.chunks.len()) {
            return check(done == -1, || format!("chunks that are none are unpinned: {done}"));
        }
        let chunks = self.chunks.iter_mut().skip(first).take(count);
        let mut all_pinned = true;
        for (_, pins) in chunks {
            all_pinned &= *pins > 0;
            *pins = pins.saturating_sub(1);
        }
        check(done == -1 || done == 0 && all_pinned, || format!("unpin returned {done}"))
    }

    /// Waits for a chunk that this process has pinned. If its maker gave up, this process makes it.
    fn wait(
        &mut self,
        calls: &Calls,
        input: &mut Unstructured<'_>,
        tag: u64,
    ) -> Result<(), String> {
        let (chunk, _) = self.range(input);
        if self.chunks.get(chunk).is_none_or(|(_, pins)| *pins == 0) {
            return self.unpin(calls, input);
        }
        // SAFETY: a live object.
        match unsafe { (calls.shared_wait)(self.at, chunk, 1) } {
            1 => self.made(calls, input, chunk, tag),
            _ => Ok(()),
        }
    }

    fn purge(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let (first, count) = self.range(input);
        // SAFETY: a live object.
        let purged = unsafe { (calls.shared_purge_now)(self.at, first, count) };
        let unpinned = self.chunks.iter().skip(first).take(count).filter(|(_, pins)| *pins == 0);
        let most = unpinned.count() as isize;
        check(purged <= most, || format!("{purged} chunks of {most} were purged"))
    }

    /// Changes a chunk in place.
    fn change(
        &mut self,
        calls: &Calls,
        input: &mut Unstructured<'_>,
        tag: u64,
    ) -> Result<(), String> {
        let (chunk, _) = self.range(input);
        // SAFETY: a live object.
        let done = unsafe { (calls.shared_remake)(self.at, chunk) };
        if done != 0 {
            return check(done == -1, || format!("a change returned {done}"));
        }
        let (before, pins) = *self.chunks.get(chunk).ok_or("a chunk that is none is changed")?;
        let found = self.read(calls, chunk);
        check(pins == 0 && before.map(|tag| [tag; 2]) == Some(found), || {
            format!("WRONG BYTES: a chunk to change has {found:?}, {before:?}, {pins} pins")
        })?;
        self.chunks[chunk].1 = 1;
        self.write(calls, chunk, tag);
        // SAFETY: a live object.
        let ended: c_int = unsafe { (calls.shared_finish)(self.at, chunk) };
        self.chunks[chunk].0 = Some(tag);
        check(ended == 0, || format!("the end of a change returned {ended}"))
    }

    fn ask(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let ((chunk, _), mut out) = (self.range(input), [0u64; 32]);
        // SAFETY: a live object; room for so many bytes; ends that this process may call at any
        // time.
        let (priority, read) = unsafe {
            let _ = (calls.shared_stats)(self.at, out.as_mut_ptr().cast(), odd(input).min(256));
            let _ = (calls.shared_set_priority)(self.at, chunk, odd(input) as u32);
            let _ = ((calls.shared_is_watched)(self.at), (calls.shared_fd)(self.at));
            ((calls.shared_priority)(self.at, chunk), (calls.shared_read)(self.at, chunk))
        };
        check((-1..=7).contains(&priority), || format!("priority {priority}"))?;
        if read == 0 {
            let (tag, _) = *self.chunks.get(chunk).ok_or("a chunk that is none was read")?;
            let found = self.read(calls, chunk);
            // SAFETY: the pin that the read has taken.
            let _ = unsafe { (calls.shared_unpin)(self.at, chunk, 1) };
            return check(tag.map(|tag| [tag; 2]) == Some(found), || {
                format!("WRONG BYTES: chunk {chunk} is read as {found:?} for {tag:?}")
            });
        }
        Ok(())
    }
}
