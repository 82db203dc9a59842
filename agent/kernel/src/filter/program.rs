//! Assembles the device filter: a straight list of comparisons that ends in "deny".
//!
//! Called by the parent module only.

use super::{Access, DeviceKind, DeviceRule, FilterError, RULES_MAX};
use crate::bpf::instruction::{
    ACCESS_MKNOD, ACCESS_READ, ACCESS_WRITE, AND_IMMEDIATE, CONTEXT, DEVICE_BLOCK, DEVICE_CHAR,
    EXIT, Instruction, JUMP_NOT_EQUAL, LOAD_WORD, MOVE_IMMEDIATE, MOVE_REGISTER, RESULT,
    SHIFT_RIGHT, instruction,
};

const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const SCRATCH: u8 = 6;

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
