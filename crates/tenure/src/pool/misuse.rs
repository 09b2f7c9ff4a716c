//! Ends a process that frees memory which it must not free: with a message, and without allocating.

use super::reservation::{Reservation, Spot};
use super::run::state;
use super::{class::MIN_RUN_BYTES, lookup};
use crate::os::arena;
use std::fmt::{self, Write};

/// A line on the stack. Text that does not fit is cut off.
struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.len;
        let taken = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + taken.len()].copy_from_slice(taken);
        self.len += taken.len();
        Ok(())
    }
}

fn end(text: fmt::Arguments<'_>) -> ! {
    let mut line = Line { bytes: [0; 400], len: 0 };
    let _ = line.write_fmt(text);
    arena::abort_with(&line.bytes[..line.len])
}

/// Ends the process: `at` was freed already.
#[cold]
pub(super) fn freed_before(call: &str, at: usize, reservation: &Reservation, spot: Spot) -> ! {
    let run = reservation.run(spot);
    let now = match run.state() {
        state::WARM => "warm",
        state::OFFERED => "offered to the kernel",
        state::RETURNED => "returned to the kernel",
        state::LEFT => "not the pool's any more",
        _ => "on its way between two states, in another thread perhaps",
    };
    let start = lookup::start_of(reservation, spot);
    let stride = reservation.area(spot.class).stride;
    if start == at {
        end(format_args!(
            "tenure: double free: {call} of {at:#x}, an allocation of {} bytes that was freed \
             before; its run of {stride} bytes is free ({now})\n",
            run.size()
        ))
    }
    end(format_args!(
        "tenure: {call} of {at:#x}, which is {} bytes into a run of {stride} bytes that is free \
         ({now}); its last allocation had {} bytes at {start:#x}\n",
        at - reservation.start(spot),
        run.size()
    ))
}

/// Ends the process: `at` is not the start of an allocation. It lies inside one, was never handed
/// out, or is not the pool's.
#[cold]
pub(super) fn not_an_allocation(call: &str, at: usize, spot: Option<(&Reservation, Spot)>) -> ! {
    if let Some((reservation, spot)) = spot {
        let run = reservation.run(spot);
        let start = lookup::start_of(reservation, spot);
        end(format_args!(
            "tenure: {call} of {at:#x}, which lies {} bytes inside an allocation of {} bytes at \
             {start:#x} (a run of {} bytes)\n",
            at.wrapping_sub(start) as isize,
            run.size(),
            reservation.area(spot.class).stride
        ))
    }
    end(format_args!(
        "tenure: {call} of {at:#x}, which the pool never handed out (it has runs of {MIN_RUN_BYTES} \
         bytes and more{})\n",
        match lookup::owns(at as *const u8) {
            true => "; the address is the pool's, and not in use so far",
            false => "; the address is not the pool's",
        }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_cut_off() {
        let mut line = Line { bytes: [0; 400], len: 0 };
        for text in ["a".repeat(250), "b".repeat(250), "c".repeat(250)] {
            line.write_str(&text).unwrap();
        }
        assert_eq!(line.bytes[..line.len], [[b'a'; 250].as_slice(), &[b'b'; 150]].concat());
    }
}
