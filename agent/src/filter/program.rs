//! Assembles the device filter: a straight list of comparisons that ends in "deny".
//!
//! Called by the parent module only. The instruction encoding is the kernel's
//! (`include/uapi/linux/bpf.h`, `bpf_common.h`); the context is `struct bpf_cgroup_dev_ctx`:
//! `access_type` (access << 16 | type), `major`, `minor`.

use super::{Access, DeviceKind, DeviceRule, FilterError, RULES_MAX};

/// One instruction as the kernel reads it: opcode, registers, offset, immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u8,
    /// Destination in the low four bits, source in the high four.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

const LOAD_WORD: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
const MOVE_IMMEDIATE: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
const MOVE_REGISTER: u8 = 0xbf; // BPF_ALU64 | BPF_MOV | BPF_X
const AND_IMMEDIATE: u8 = 0x57; // BPF_ALU64 | BPF_AND | BPF_K
const SHIFT_RIGHT: u8 = 0x77; // BPF_ALU64 | BPF_RSH | BPF_K
const JUMP_NOT_EQUAL: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K
const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT

const DEVICE_BLOCK: i32 = 1;
const DEVICE_CHAR: i32 = 2;
const ACCESS_MKNOD: i32 = 1;
const ACCESS_READ: i32 = 2;
const ACCESS_WRITE: i32 = 4;

const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const SCRATCH: u8 = 6;

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

/// The whole program for these rules; default deny.
pub fn assemble(rules: &[DeviceRule]) -> Result<Vec<Instruction>, FilterError> {
    if rules.len() > RULES_MAX {
        return Err(FilterError::TooManyRules { count: rules.len() });
    }
    let mut code = vec![
        instruction(LOAD_WORD, KIND, CONTEXT, 0, 0),
        instruction(MOVE_REGISTER, ACCESS, KIND, 0, 0),
        instruction(AND_IMMEDIATE, KIND, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules {
        push_rule(&mut code, rule);
    }
    code.push(instruction(MOVE_IMMEDIATE, RESULT, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    Ok(code)
}

/// Appends one rule: each comparison that fails jumps to the next rule, the end of the rule allows.
fn push_rule(code: &mut Vec<Instruction>, rule: &DeviceRule) {
    let kind = match rule.kind {
        DeviceKind::Char => DEVICE_CHAR,
        DeviceKind::Block => DEVICE_BLOCK,
    };
    let denied = !access_bits(rule.access) & (ACCESS_MKNOD | ACCESS_READ | ACCESS_WRITE);
    let mut body = vec![
        instruction(JUMP_NOT_EQUAL, KIND, 0, 0, kind),
        instruction(MOVE_REGISTER, SCRATCH, ACCESS, 0, 0),
        instruction(AND_IMMEDIATE, SCRATCH, 0, 0, denied),
        instruction(JUMP_NOT_EQUAL, SCRATCH, 0, 0, 0),
        instruction(JUMP_NOT_EQUAL, MAJOR, 0, 0, rule.major.cast_signed()),
    ];
    if let Some(minor) = rule.minor {
        body.push(instruction(JUMP_NOT_EQUAL, MINOR, 0, 0, minor.cast_signed()));
    }
    body.push(instruction(MOVE_IMMEDIATE, RESULT, 0, 0, 1));
    body.push(instruction(EXIT, 0, 0, 0, 0));
    let length = body.len();
    for (at, line) in body.iter_mut().enumerate() {
        if line.code == JUMP_NOT_EQUAL {
            // Offsets count from the following instruction. A rule has eight lines, so this fits.
            line.offset = i16::try_from(length - at - 1).unwrap_or(i16::MAX);
        }
    }
    code.extend(body);
}

fn access_bits(access: Access) -> i32 {
    let mut bits = 0;
    for (on, bit) in
        [(access.read, ACCESS_READ), (access.write, ACCESS_WRITE), (access.mknod, ACCESS_MKNOD)]
    {
        if on {
            bits |= bit;
        }
    }
    bits
}
