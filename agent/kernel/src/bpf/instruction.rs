//! The instructions that device programs are assembled from. The encoding is the kernel's
//! (`include/uapi/linux/bpf.h`, `bpf_common.h`).
//!
//! The context of a device program is `struct bpf_cgroup_dev_ctx`: `access_type` (access << 16 | type), `major`,
//! `minor`, each of 32 bits.

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

pub const LOAD_WORD: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
pub const LOAD_IMMEDIATE_64: u8 = 0x18; // BPF_LD | BPF_IMM | BPF_DW, two instructions long
pub const LOAD_DOUBLE: u8 = 0x79; // BPF_LDX | BPF_MEM | BPF_DW
pub const STORE_WORD: u8 = 0x63; // BPF_STX | BPF_MEM | BPF_W
pub const STORE_DOUBLE: u8 = 0x7b; // BPF_STX | BPF_MEM | BPF_DW
pub const STORE_WORD_IMMEDIATE: u8 = 0x62; // BPF_ST | BPF_MEM | BPF_W
pub const STORE_DOUBLE_IMMEDIATE: u8 = 0x7a; // BPF_ST | BPF_MEM | BPF_DW
pub const ATOMIC_DOUBLE: u8 = 0xdb; // BPF_STX | BPF_ATOMIC | BPF_DW; immediate 0 adds
pub const MOVE_IMMEDIATE: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
pub const MOVE_REGISTER: u8 = 0xbf; // BPF_ALU64 | BPF_MOV | BPF_X
pub const MOVE_REGISTER_32: u8 = 0xbc; // BPF_ALU | BPF_MOV | BPF_X: the upper half becomes 0
pub const ADD_IMMEDIATE: u8 = 0x07; // BPF_ALU64 | BPF_ADD | BPF_K
pub const AND_IMMEDIATE: u8 = 0x57; // BPF_ALU64 | BPF_AND | BPF_K
pub const SHIFT_RIGHT: u8 = 0x77; // BPF_ALU64 | BPF_RSH | BPF_K
pub const TO_BIG_ENDIAN: u8 = 0xdc; // BPF_ALU | BPF_END | BPF_TO_BE; the immediate is how many bits
pub const JUMP: u8 = 0x05; // BPF_JMP | BPF_JA
pub const JUMP_EQUAL: u8 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub const JUMP_NOT_EQUAL: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K
pub const CALL: u8 = 0x85; // BPF_JMP | BPF_CALL
pub const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT

/// Source of a [`LOAD_IMMEDIATE_64`] that stands for the descriptor of a map (`BPF_PSEUDO_MAP_FD`).
pub const MAP_DESCRIPTOR: u8 = 1;

pub const DEVICE_BLOCK: i32 = 1;
pub const DEVICE_CHAR: i32 = 2;
pub const ACCESS_MKNOD: i32 = 1;
pub const ACCESS_READ: i32 = 2;
pub const ACCESS_WRITE: i32 = 4;

/// Holds what the program answers, and what a function it called answered.
pub const RESULT: u8 = 0;
/// At the start of a program: where the context is.
pub const CONTEXT: u8 = 1;

pub const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}
