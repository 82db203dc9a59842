//! Why the kernel does not run a file that exists: its interpreter, or what is in it.
//!
//! The kernel has one answer for a missing program and for a missing interpreter of a program. Asked by `main` after an
//! execve(2) that failed; reads the file's first bytes, at most as many as the kernel does, and never writes.

use core::ffi::CStr;

use crate::kernel::{self, Errno};

/// The kernel reads as many bytes of a script's first line, and an interpreter's name is no longer.
const HEAD_BYTES: usize = 256;
/// Most headers of a program that are searched for its interpreter's name.
const PROGRAM_HEADERS_MAX: u64 = 64;
const ELF: &[u8] = b"\x7fELF";
/// `PT_INTERP`.
const INTERPRETER: u64 = 3;
/// `EM_X86_64`, the only machine this init is for.
const OWN_MACHINE: u64 = 62;

/// What stands in the way.
#[expect(clippy::large_enum_variant, reason = "there is no heap here")]
pub(crate) enum Trouble {
    /// What the kernel said is about the file itself.
    OfFile,
    /// It is a text without an interpreter: shells read these themselves.
    Text,
    /// What the kernel said is about the program that is to run this one.
    OfInterpreter(Interpreter),
    /// No kernel of this machine runs it. Whether another machine would.
    Foreign { other_machine: bool },
}

/// The name of an interpreter, as the file has it.
pub(crate) struct Interpreter {
    bytes: [u8; HEAD_BYTES],
    length: usize,
}

impl Interpreter {
    fn of(name: &[u8]) -> Self {
        let mut bytes = [0; HEAD_BYTES];
        let mut length = 0_usize;
        for (place, byte) in bytes.iter_mut().zip(name) {
            *place = *byte;
            length = length.wrapping_add(1);
        }
        Self { bytes, length }
    }

    /// Empty where it could not be read.
    pub(crate) fn name(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Says what `error`, the kernel's answer to running `path`, is about.
pub(crate) fn trouble(path: &CStr, error: Errno) -> Trouble {
    if !error.may_be_of_content() || !kernel::may_execute(path) {
        return Trouble::OfFile;
    }
    let Ok(file) = kernel::open_to_read(path) else {
        // It may be run but not read. A program that is there is not missing, so its interpreter is.
        return match error == Errno::NOT_FOUND {
            true => Trouble::OfInterpreter(Interpreter::of(b"")),
            false => Trouble::OfFile,
        };
    };
    let found = look(file, error);
    kernel::close(file);
    found
}

fn look(file: i32, error: Errno) -> Trouble {
    let mut head = [0; HEAD_BYTES];
    // A directory cannot be read, and what the kernel said is about it.
    let Ok(length) = kernel::read_at(file, &mut head, 0) else { return Trouble::OfFile };
    let head = head.get(..length).unwrap_or_default();
    let unknown = error == Errno::NO_PROGRAM;
    if let Some(line) = head.strip_prefix(b"#!") {
        let name = first_word(line);
        return match (name.is_empty(), unknown) {
            (false, _) => Trouble::OfInterpreter(Interpreter::of(name)),
            (true, true) => Trouble::Text,
            (true, false) => Trouble::OfFile,
        };
    }
    if head.starts_with(ELF) {
        if unknown {
            let machine = number(head, 18, 2);
            return Trouble::Foreign { other_machine: machine != Some(OWN_MACHINE) };
        }
        return interpreter(file, head).map_or(Trouble::OfFile, Trouble::OfInterpreter);
    }
    match unknown {
        true if first_line(head).contains(&0) => Trouble::Foreign { other_machine: false },
        true => Trouble::Text,
        false => Trouble::OfFile,
    }
}

/// The part by which shells judge whether a file is a script. What follows may be binary: some scripts carry a program.
fn first_line(head: &[u8]) -> &[u8] {
    head.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// The interpreter of a script's first line, as the kernel reads it: a carriage return belongs to the name.
fn first_word(line: &[u8]) -> &[u8] {
    let mut words = first_line(line).split(|byte| *byte == b' ' || *byte == b'\t' || *byte == 0);
    words.find(|word| !word.is_empty()).unwrap_or_default()
}

/// The interpreter that a program in ELF names.
fn interpreter(file: i32, head: &[u8]) -> Option<Interpreter> {
    // Where things are in the 64-bit form and in the 32-bit one: headers, their size and number; kind, place and size.
    let (headers, size, count, at, wide) = match head.get(4)? {
        2 => (32, 54, 56, 8, 8),
        _ => (28, 42, 44, 4, 4),
    };
    let first = number(head, headers, wide)?;
    let size = number(head, size, 2)?;
    let count = number(head, count, 2)?.min(PROGRAM_HEADERS_MAX);
    for index in 0..count {
        let mut header = [0; 64];
        kernel::read_at(file, &mut header, first.wrapping_add(index.wrapping_mul(size))).ok()?;
        if number(&header, 0, 4)? != INTERPRETER {
            continue;
        }
        let mut name = [0; HEAD_BYTES];
        kernel::read_at(file, &mut name, number(&header, at, wide)?).ok()?;
        return Some(Interpreter::of(name.split(|byte| *byte == 0).next()?));
    }
    None
}

/// A little-endian number of this many bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
