//! The program's own pages: each holds the bytes that the program has written last, or zeros that
//! were reported.

use super::calls::{Calls, P};
use super::choose::{check, handle, odd, once_in};
use crate::os::page_size;
use arbitrary::Unstructured;
use libc::{
    c_void, MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE,
};
use std::cell::RefCell;

/// The parts of the area, in pages: end, protection, and flags. 0: nothing is mapped there.
const PARTS: [(usize, i32, i32); 6] = [
    (64, PROT_READ | PROT_WRITE, MAP_PRIVATE),
    (68, PROT_READ, MAP_PRIVATE),
    (72, PROT_NONE, MAP_PRIVATE),
    (76, 0, 0),
    (84, PROT_READ | PROT_WRITE, MAP_SHARED),
    (PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE),
];
const PAGES: usize = 96;
/// From there on the program unmaps pages, and maps them again.
const MOVABLE: usize = 84;

#[derive(Clone, Copy, Default)]
struct Page {
    /// The word at its start and its end; 0: zeros.
    tag: u64,
    /// The kernel may be allowed to take it.
    marked: bool,
}

/// An object on a range of the first part.
enum Held {
    Lock(P),
    Gradual(P),
    Within(P),
    Populating(P),
}

pub struct Pages {
    base: usize,
    pages: [Page; PAGES],
    next: u64,
    held: Vec<Held>,
}

fn part_of(page: usize) -> (i32, i32) {
    let (_, protection, flags) = PARTS[PARTS.iter().position(|(end, ..)| page < *end).unwrap_or(5)];
    (protection, flags)
}

fn is_ordinary(page: usize) -> bool {
    part_of(page) == (PROT_READ | PROT_WRITE, MAP_PRIVATE)
}

thread_local! {
    /// The pages that a call has reported as gone to this thread.
    static GONE: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn gone(offset: usize, len: usize, _: *mut c_void) {
    GONE.with(|list| list.borrow_mut().push((offset, len)));
}

/// A range for a call, and the pages of the area that it touches.
struct Range {
    at: P,
    len: usize,
    first: usize,
    end: usize,
}

impl Range {
    fn pages(&self) -> std::ops::Range<usize> {
        self.first..self.end
    }
}

impl Pages {
    pub fn new() -> Result<Pages, String> {
        let page = page_size();
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), (PAGES + 2) * page, PROT_NONE, flags, -1, 0)
        };
        check(base != libc::MAP_FAILED, || "no memory for the area".into())?;
        let base = base as usize + page;
        let mut pages = Pages { base, pages: [Page::default(); PAGES], next: 1, held: Vec::new() };
        pages.map_again(0, PAGES);
        Ok(pages)
    }

    fn address(&self, page: usize) -> usize {
        self.base + page * page_size()
    }

    fn is_mapped(&self, page: usize) -> bool {
        // SAFETY: the call changes nothing in memory.
        unsafe { libc::msync(self.address(page) as P, page_size(), libc::MS_ASYNC) == 0 }
    }

    /// Maps the pages as `PARTS` requires, empty.
    fn map_again(&mut self, first: usize, end: usize) {
        for page in first..end {
            let (at, (protection, flags)) = (self.address(page) as P, part_of(page));
            // SAFETY: a page of the area, to which nothing refers.
            unsafe {
                match flags {
                    0 => drop(libc::munmap(at, page_size())),
                    _ => {
                        let flags = flags | MAP_ANONYMOUS | MAP_FIXED;
                        libc::mmap(at, page_size(), protection, flags, -1, 0);
                    }
                }
            }
            self.pages[page] = Page::default();
        }
    }

    /// Mostly whole pages of the area, and sometimes a range that no call accepts.
    fn range(&self, input: &mut Unstructured<'_>, from: usize, to: usize) -> Range {
        let first = input.int_in_range(from..=to - 1).unwrap_or(from);
        let count = input.int_in_range(1..=to - first).unwrap_or(1);
        let (mut at, mut len) = (self.address(first), count * page_size());
        match input.int_in_range(0..=23).unwrap_or(9) {
            0 => at += 1 + usize::from(input.arbitrary::<u8>().unwrap_or(0)),
            // A part of the last page: the area has a page behind it.
            1 => len -= 1 + usize::from(input.arbitrary::<u8>().unwrap_or(0)),
            2 => at = 0,
            3 => len = 0,
            // Such a range wraps around or is the kernel's.
            4 => len = usize::MAX - odd(input) % page_size(),
            5 => len = isize::MAX as usize / page_size() * page_size(),
            _ => {}
        }
        Range { at: at as P, len, first, end: first + count }
    }

    pub fn step(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        match input.int_in_range(0..=21).unwrap_or(0) {
            0..=2 => self.mark(calls, input),
            3..=5 => self.unmark(calls, input),
            6 | 7 => self.purge(calls, input),
            8 => self.forget(calls, input),
            9 => self.ask(calls, input),
            10..=12 => self.write(input),
            13 => self.lock(calls, input),
            14 => self.populate(calls, input),
            15 => self.discard(calls, input),
            16 => self.unmap(calls, input),
            17 => self.hold(calls, input),
            18 => self.use_held(calls, input),
            19 => self.let_go(calls, input),
            20 => self.map(calls, input),
            _ => self.lock_all(calls, input),
        }
    }

    fn mark(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        let priority = if once_in(input, 8) { odd(input) as u32 } else { 4 };
        // The kernel may have put another mapping of the program into the hole.
        if range.pages().any(|page| part_of(page).1 == 0 && self.is_mapped(page)) {
            return Ok(());
        }
        // SAFETY: the area belongs to this program, which relies on no marked page's contents.
        let done = unsafe {
            match once_in(input, 2) {
                true => (calls.mvolatile)(range.at, range.len),
                false => (calls.mvolatile_priority)(range.at, range.len, priority),
            }
        };
        if done == 0 {
            let ordinary = range.pages().all(is_ordinary);
            check(ordinary, || "a mark took what cannot be volatile".into())?;
            range.pages().for_each(|page| self.pages[page].marked = true);
        }
        check(done == 0 || done == -1, || format!("a mark returned {done}"))
    }

    fn unmark(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        let with_map = once_in(input, 2);
        GONE.with(|list| list.borrow_mut().clear());
        // SAFETY: the area belongs to this program; the callback takes the arguments
        // of its calls.
        let done = unsafe {
            match with_map {
                true => {
                    (calls.mnovolatile_map)(range.at, range.len, gone as _, std::ptr::null_mut())
                }
                false => (calls.mnovolatile)(range.at, range.len),
            }
        };
        if done == -1 {
            // A part may belong to the program again; the next call reports the losses.
            return Ok(());
        }
        let told = GONE.with(|list| list.borrow().clone());
        check(done == 0 || done == 1, || format!("an unmark returned {done}"))?;
        check(!with_map || told.is_empty() == (done == 0), || {
            format!("{done}, and gone: {told:?}")
        })?;
        let base = self.base;
        let is_told = |page: usize| {
            let offset = base + page * page_size() - range.at as usize;
            told.iter().any(|(at, len)| (*at..at + len).contains(&offset))
        };
        for page in range.pages() {
            let marked = self.pages[page].marked;
            // Parts that were never marked are checked by `check`.
            let is_gone = if with_map {
                is_told(page)
            } else {
                done == 1 && marked && self.read(page) == (0, 0)
            };
            if is_gone {
                check(marked, || format!("page {page} was not marked, and is gone"))?;
                check(self.read(page) == (0, 0), || format!("page {page} is gone, and not zeros"))?;
                self.pages[page].tag = 0;
            }
            self.pages[page].marked = false;
        }
        Ok(())
    }

    fn purge(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        // SAFETY: the program does not rely on marked parts of the area, and the area stays mapped.
        let _ = unsafe {
            match once_in(input, 3) {
                true => (calls.offer_now)(range.at, range.len),
                false => (calls.purge_now)(range.at, range.len),
            }
        };
        Ok(())
    }

    fn forget(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        // SAFETY: the area belongs to this program.
        if unsafe { (calls.forget)(range.at, range.len) } == 0 {
            for page in range.pages() {
                if self.pages[page].marked && self.read(page) == (0, 0) {
                    self.pages[page].tag = 0;
                }
                self.pages[page].marked = false;
            }
        }
        Ok(())
    }

    fn ask(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        // SAFETY: the call reads nothing at the address.
        let said = unsafe { (calls.is_volatile)(range.at, range.len) };
        // After a failed unmark a page may belong to the program again although it is still noted
        // here.
        let any = range.pages().any(|page| self.pages[page].marked);
        check(said == 0 || said == 1 && any, || {
            let pages = range.pages();
            format!("is_volatile returned {said} for pages {pages:?}, {} bytes", range.len)
        })?;
        let mut parts = vec![0u64; 5 * 8];
        // SAFETY: there is room for 8 parts of 40 bytes.
        let _ = unsafe {
            (calls.lock_receipt)(
                range.at,
                range.len,
                parts.as_mut_ptr().cast(),
                40,
                odd(input).min(8),
            )
        };
        Ok(())
    }

    fn write(&mut self, input: &mut Unstructured<'_>) -> Result<(), String> {
        let first = input.int_in_range(0..=PAGES - 1).unwrap_or(0);
        let count = input.int_in_range(1..=16).unwrap_or(1);
        for page in
            (first..PAGES.min(first + count)).filter(|page| part_of(*page).0 & PROT_WRITE != 0)
        {
            if self.pages[page].marked {
                continue;
            }
            self.next += 1;
            self.pages[page].tag = self.next;
            let at = self.address(page) as *mut u64;
            // SAFETY: a writable page of the area that is not marked; both words lie in it.
            unsafe {
                at.write_volatile(self.next);
                at.byte_add(page_size() - 8).write_volatile(self.next);
            }
        }
        Ok(())
    }

    fn read(&self, page: usize) -> (u64, u64) {
        let at = self.address(page) as *const u64;
        // SAFETY: the callers pass readable pages only; both words lie in the page.
        unsafe { (at.read_volatile(), at.byte_add(page_size() - 8).read_volatile()) }
    }

    /// Checks that unmarked pages are as they were written.
    pub fn check(&self) -> Result<(), String> {
        for page in (0..PAGES).filter(|page| part_of(*page).0 & PROT_READ != 0) {
            let Page { tag, marked } = self.pages[page];
            if !marked {
                let found = self.read(page);
                check(found == (tag, tag), || {
                    format!("WRONG BYTES: page {page} has {found:?} for {tag}")
                })?;
            }
        }
        Ok(())
    }

    fn lock(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        let flags =
            if once_in(input, 8) { odd(input) } else { input.int_in_range(0..=3).unwrap_or(0) };
        // SAFETY: locks and unlocks change no contents.
        let _ = unsafe {
            match once_in(input, 2) {
                true => (calls.mlock2)(range.at, range.len, flags as u32),
                false => (calls.munlock2)(range.at, range.len, flags as u32),
            }
        };
        Ok(())
    }

    fn lock_all(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let flags = input.int_in_range(0..=9).unwrap_or(0);
        // SAFETY: locks and unlocks change no contents.
        let _ = unsafe {
            match once_in(input, 4) {
                true => (calls.mlockall)(flags),
                false => (calls.munlockall2)(flags),
            }
        };
        Ok(())
    }

    fn populate(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        let mut opts = populate_opts(input);
        let mut result = [48u64, 0, 0, 0, 0, 0];
        if once_in(input, 8) {
            result[0] = odd(input).min(48) as u64;
        }
        let opts = if once_in(input, 3) { std::ptr::null_mut() } else { opts.as_mut_ptr().cast() };
        let how = input.int_in_range(0..=3).unwrap_or(0);
        // SAFETY: both structures are as long as they say; a populate changes no contents.
        let _ =
            unsafe { (calls.populate)(range.at, range.len, how, opts, result.as_mut_ptr().cast()) };
        Ok(())
    }

    fn discard(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, 0, PAGES);
        // The kernel may have put another mapping of the program into the hole.
        if range.pages().any(|page| part_of(page).1 == 0) {
            return Ok(());
        }
        // SAFETY: the area belongs to this program, which expects zeros afterwards.
        let done = unsafe { (calls.discard)(range.at, range.len) };
        for page in range.pages() {
            if part_of(page).0 & PROT_READ != 0 && !self.pages[page].marked {
                let found = self.read(page);
                // A call that fails may have discarded a part.
                check(done == -1 || found == (0, 0), || {
                    format!("page {page} was discarded: {found:?}")
                })?;
                if found == (0, 0) {
                    self.pages[page].tag = 0;
                }
            }
        }
        Ok(())
    }

    /// In the last part, which holds no object.
    fn unmap(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let range = self.range(input, MOVABLE, PAGES);
        // SAFETY: pages of the area, to which nothing refers, or a range that munmap refuses.
        let done = unsafe {
            match once_in(input, 2) {
                true => (calls.munmap)(range.at, range.len),
                false => (calls.munmap_raw)(range.at, range.len),
            }
        };
        // A munmap at address 0, where nothing is mapped, succeeds, too.
        if done == 0 && range.at as usize == self.address(range.first) {
            self.map_again(range.first, range.end);
        }
        Ok(())
    }

    /// Makes, uses and unmaps a mapping.
    fn map(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        const LOCK_ON_FAULT: i32 = 0x100_0000;
        let len = if once_in(input, 6) { odd(input) } else { 4 * page_size() };
        let protection = input.int_in_range(0..=3).unwrap_or(3);
        let on_fault = if once_in(input, 2) { LOCK_ON_FAULT } else { 0 };
        let flags =
            MAP_PRIVATE | MAP_ANONYMOUS | on_fault | if once_in(input, 8) { MAP_SHARED } else { 0 };
        let fd = if once_in(input, 8) { odd(input) as i32 } else { -1 };
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe { (calls.mmap)(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED || at.is_null() {
            return Ok(());
        }
        if protection == PROT_READ | PROT_WRITE && len >= 8 {
            // SAFETY: a new mapping that may be read and written, of this length.
            let found = unsafe {
                let found = at.cast::<u64>().read_volatile();
                at.cast::<u64>().write_volatile(7);
                found
            };
            check(found == 0, || "WRONG BYTES: a new mapping is not zeros".into())?;
        }
        // SAFETY: mapped above, and not used any more.
        let done = unsafe { (calls.munmap)(at, len.next_multiple_of(page_size())) };
        check(done == 0, || "what was mapped cannot be unmapped".into())
    }

    /// In the first part, which stays mapped.
    fn hold(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        if self.held.len() >= 6 {
            return Ok(());
        }
        let range = self.range(input, 0, 64);
        let mut opts = populate_opts(input);
        // SAFETY: the range stays mapped until the object is ended.
        let (held, made): (P, fn(P) -> Held) = unsafe {
            match input.int_in_range(0..=3).unwrap_or(0) {
                0 => ((calls.lock)(range.at, range.len, odd(input) as u32 & 3), Held::Lock),
                1 => ((calls.lock_gradually)(range.at, range.len), Held::Gradual),
                2 => ((calls.lock_within)(range.at, range.len, odd(input)), Held::Within),
                _ => {
                    let opts = opts.as_mut_ptr().cast();
                    ((calls.populate_start)(range.at, range.len, 2, opts), Held::Populating)
                }
            }
        };
        if !held.is_null() {
            self.held.push(made(held));
        }
        Ok(())
    }

    fn use_held(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        let Some(at) = handle(input, self.held.len()) else { return Ok(()) };
        let mut out = [0u64; 16];
        let (room, size) = (out.as_mut_ptr().cast(), odd(input).min(128));
        // SAFETY: a live object, and room for so many bytes.
        let _ = unsafe {
            match self.held[at] {
                Held::Lock(_) => 0,
                Held::Gradual(it) if size % 2 == 0 => (calls.gradual_progress)(it, room, size),
                Held::Gradual(it) => (calls.gradual_wait)(it, 1, std::ptr::null_mut()),
                Held::Within(it) => (calls.within_status)(it, room, size),
                Held::Populating(it) if size % 2 == 0 => (calls.populate_progress)(it, room, size),
                Held::Populating(it) if size % 3 == 0 => (calls.populate_cancel)(it),
                Held::Populating(it) => (calls.populate_wait)(it, 1),
            }
        };
        Ok(())
    }

    fn let_go(&mut self, calls: &Calls, input: &mut Unstructured<'_>) -> Result<(), String> {
        if let Some(at) = handle(input, self.held.len()) {
            end_one(calls, self.held.swap_remove(at));
        }
        Ok(())
    }

    pub fn end(mut self, calls: &Calls) -> Result<(), String> {
        self.held.drain(..).for_each(|held| end_one(calls, held));
        // SAFETY: unlocks change no contents; the pages belong to this program, and nothing refers
        // to them.
        unsafe {
            (calls.munlockall2)(0);
            let (at, len) = (self.base as P, PAGES * page_size());
            (calls.munmap)(at, 72 * page_size());
            (calls.munmap)(self.address(76) as P, 20 * page_size());
            libc::munmap((self.base - page_size()) as P, page_size());
            libc::munmap((at as usize + len) as P, page_size());
        }
        Ok(())
    }
}

fn end_one(calls: &Calls, held: Held) {
    // SAFETY: a live object, which is not used any more.
    unsafe {
        match held {
            Held::Lock(it) => (calls.unlock)(it),
            Held::Gradual(it) => (calls.gradual_end)(it),
            Held::Within(it) => (calls.within_end)(it),
            Held::Populating(it) => drop((calls.populate_end)(it, std::ptr::null_mut())),
        }
    }
}

/// A structure as long as its size field, or shorter.
fn populate_opts(input: &mut Unstructured<'_>) -> [u64; 6] {
    let mut opts = [48, 0, 0, u64::from(u32::MAX), 0, 0];
    if once_in(input, 4) {
        opts[0] = odd(input).min(48) as u64;
    }
    if once_in(input, 3) {
        opts[1] = input.int_in_range(0..=3).unwrap_or(0) | (odd(input) as u64) << 32;
        opts[2] = odd(input) as u64;
    }
    opts
}
