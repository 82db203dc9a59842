//! The operating system's clock and randomness, as this process sees them: from the seed.
//!
//! Overrides two functions of the C library for the whole test program. Everything below (std's maps, the
//! runtime's scheduler, openraft's election timeouts, ids, `Instant`, the wall clock) asks them, so nothing
//! of the product has to know that it is simulated. Where no simulation runs on the calling thread, the
//! kernel answers as ever. It must never be linked into a program that is shipped.
#![expect(
    unsafe_code,
    reason = "defines functions of the C library and fills their callers' memory"
)]

use std::cell::Cell;

use libc::{c_int, c_long, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};

use crate::rng::Rng;

/// What the clocks of the host at work show.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    since_boot_us: u64,
    wall_us: u64,
}

thread_local! {
    static CLOCKS: Cell<Option<Clocks>> = const { Cell::new(None) };
    static RANDOM: Cell<Option<Rng>> = const { Cell::new(None) };
}

/// From here on this thread's randomness comes from the seed.
pub(crate) fn seed(seed: u64) {
    RANDOM.set(Some(Rng::new(seed)));
}

/// What the clocks of this thread show until the next call.
pub(crate) fn set_clocks(since_boot_us: u64, wall_us: u64) {
    CLOCKS.set(Some(Clocks { since_boot_us, wall_us }));
}

fn to_timespec(us: u64) -> timespec {
    timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000) as c_long * 1_000 }
}

/// `clock_gettime(2)`.
///
/// # Safety
/// As the C library's: `out` points to a `timespec`.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(id: clockid_t, out: *mut timespec) -> c_int {
    let shown = CLOCKS.try_with(Cell::get).ok().flatten().and_then(|clocks| match id {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => Some(clocks.wall_us),
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_BOOTTIME => Some(clocks.since_boot_us),
        _ => None,
    });
    match shown {
        Some(us) => {
            // SAFETY: the caller promises that `out` points to a timespec it may write.
            unsafe { out.write(to_timespec(us)) };
            0
        }
        // SAFETY: the kernel checks both arguments itself.
        None => unsafe { libc::syscall(libc::SYS_clock_gettime, id, out) as c_int },
    }
}

/// `getrandom(2)`.
///
/// # Safety
/// As the C library's: `buffer` points to `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    let Some(mut rng) = RANDOM.try_with(Cell::get).ok().flatten() else {
        // SAFETY: the kernel checks the arguments itself.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, len, flags) as ssize_t };
    };
    for at in 0..len {
        let byte = (rng.next() >> 32) as u8;
        // SAFETY: the caller promises that `buffer` points to `len` bytes it may write.
        unsafe { buffer.cast::<u8>().add(at).write(byte) };
    }
    RANDOM.set(Some(rng));
    len as ssize_t
}
