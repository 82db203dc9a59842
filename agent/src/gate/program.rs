//! Assembles the gate: anybody may open what is not a GPU; root, jobs and the users in the map may open a GPU.
//!
//! Who somebody is, is asked of the control group first: containers of dockerd are root's by their uid, and a user's by
//! their group. Numbers in a user's containers without root are that user's.
//!
//! Called by [`super::kernel`] only. What is no GPU is let through at once: most opens are of that kind.

use fleet_kernel::bpf::instruction::{
    ACCESS_MKNOD, ADD_IMMEDIATE, AND_IMMEDIATE, ATOMIC_DOUBLE, CALL, CONTEXT, DEVICE_CHAR, EXIT,
    Instruction, JUMP, JUMP_EQUAL, JUMP_NOT_EQUAL, LOAD_DOUBLE, LOAD_IMMEDIATE_64, LOAD_WORD,
    MAP_DESCRIPTOR, MOVE_IMMEDIATE, MOVE_REGISTER, MOVE_REGISTER_32, RESULT, SHIFT_RIGHT,
    STORE_DOUBLE, STORE_DOUBLE_IMMEDIATE, STORE_WORD, STORE_WORD_IMMEDIATE, TO_BIG_ENDIAN,
    instruction,
};
use fleet_kernel::filter::{NVIDIA_MODESET_MINOR, NVIDIACTL_MINOR};

/// In the place of a minor: every GPU, for this user.
pub(super) const EVERY_GPU: u32 = u32::MAX;
/// In the place of a minor: every GPU, for users whose own group has this number.
pub(super) const EVERY_GPU_FOR_GROUP: u32 = u32::MAX - 1;
/// How deep below the root the groups that say who somebody is may lie: `fleet.slice` is the first level.
const TREE_LEVELS: i32 = 8;
/// What the map of those groups says of the group of all jobs.
pub(super) const JOBS: u64 = 1;
const JOBS_IMMEDIATE: i32 = 1;

/// What the maps of groups and of subordinate numbers say of a user: as the kernel gives uid and gid, with no group.
pub(super) fn stands_for(uid: u32) -> u64 {
    u64::from(u32::MAX) << 32 | u64::from(uid)
}

const FN_MAP_LOOKUP: i32 = 1;
const FN_MAP_UPDATE: i32 = 2;
/// The real uid, and the real gid in the upper half: a program that is setuid root runs for who started it.
const FN_CURRENT_UID_GID: i32 = 15;
/// In device programs since about Linux 6.1; loading tells.
const FN_CURRENT_ANCESTOR_CGROUP: i32 = 123;

const SECOND: u8 = 2;
const THIRD: u8 = 3;
const FOURTH: u8 = 4;
/// These keep their values over calls.
const SAVED_CONTEXT: u8 = 6;
const MAJOR: u8 = 7;
/// What the map of groups says, in the place of the major number.
const FOUND: u8 = 7;
const MINOR: u8 = 8;
const WHO: u8 = 9;
const FRAME: u8 = 10;

/// Where on the stack the key of a question is: who, and which GPU.
const KEY: i16 = -8;
const KEY_GPU: i16 = -4;
/// The key of a tree, or the first count of a denial.
const WORD: i16 = -16;

/// What the program is made for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Major number of the GPUs' device nodes.
    pub(super) cards: u32,
    /// Else it only counts.
    pub(super) deny: bool,
    /// Descriptors of the maps.
    pub(super) passes: i32,
    pub(super) denials: i32,
    pub(super) subordinates: i32,
    /// The control groups below which jobs and containers live; none where device programs cannot ask for that.
    pub(super) trees: Option<i32>,
}

/// Places in the program that are jumped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Allow,
    /// After this level of the groups.
    Level(i32),
    AfterTrees,
    ByNumber,
    Known,
    NoSubordinate,
    FirstDenial,
    Verdict,
}

#[derive(Debug, Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Place)>,
    places: Vec<(Place, usize)>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code.push(instruction(code, to, from, offset, immediate));
    }

    fn jump(&mut self, code: u8, register: u8, immediate: i32, place: Place) {
        self.jumps.push((self.code.len(), place));
        self.push(code, register, 0, 0, immediate);
    }

    fn here(&mut self, place: Place) {
        self.places.push((place, self.code.len()));
    }

    fn load_map(&mut self, map: i32) {
        self.push(LOAD_IMMEDIATE_64, CONTEXT, MAP_DESCRIPTOR, 0, map);
        self.push(0, 0, 0, 0, 0);
    }

    /// Asks a map for the key at this place of the stack; the answer is in [`RESULT`], 0 is none.
    fn look_up(&mut self, map: i32, key: i16) {
        self.load_map(map);
        self.push(MOVE_REGISTER, SECOND, FRAME, 0, 0);
        self.push(ADD_IMMEDIATE, SECOND, 0, 0, i32::from(key));
        self.push(CALL, 0, 0, 0, FN_MAP_LOOKUP);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, place) in &self.jumps {
            let target = self.places.iter().find(|(known, _)| known == place);
            let target = target.map_or(self.code.len(), |(_, target)| *target);
            // Offsets count from the following instruction. The program is some hundred lines long, all
            // jumps lead forward.
            self.code[*at].offset = i16::try_from(target - at - 1).unwrap_or(i16::MAX);
        }
        self.code
    }
}

/// The whole program.
pub(super) fn assemble(shape: Shape) -> Vec<Instruction> {
    let mut p = Assembler::default();
    is_it_a_gpu(&mut p, shape.cards);
    p.push(CALL, 0, 0, 0, FN_CURRENT_UID_GID);
    p.push(MOVE_REGISTER, WHO, RESULT, 0, 0);
    if let Some(trees) = shape.trees {
        whose_is_the_group(&mut p, trees);
    }
    p.here(Place::ByNumber);
    p.push(MOVE_REGISTER_32, SECOND, WHO, 0, 0);
    p.jump(JUMP_EQUAL, SECOND, 0, Place::Allow);
    p.here(Place::Known);
    is_it_said(&mut p, shape.passes);
    whose_number_is_it(&mut p, shape.subordinates);
    is_it_said(&mut p, shape.passes);
    p.here(Place::NoSubordinate);
    is_it_opened(&mut p);
    count(&mut p, shape.denials);
    p.here(Place::Verdict);
    p.push(MOVE_IMMEDIATE, RESULT, 0, 0, i32::from(!shape.deny));
    p.push(EXIT, 0, 0, 0, 0);
    p.here(Place::Allow);
    p.push(MOVE_IMMEDIATE, RESULT, 0, 0, 1);
    p.push(EXIT, 0, 0, 0, 0);
    p.finish()
}

fn is_it_a_gpu(p: &mut Assembler, cards: u32) {
    p.push(MOVE_REGISTER, SAVED_CONTEXT, CONTEXT, 0, 0);
    p.push(LOAD_WORD, SECOND, SAVED_CONTEXT, 0, 0);
    p.push(AND_IMMEDIATE, SECOND, 0, 0, 0xffff);
    p.jump(JUMP_NOT_EQUAL, SECOND, DEVICE_CHAR, Place::Allow);
    p.push(LOAD_WORD, MAJOR, SAVED_CONTEXT, 4, 0);
    p.jump(JUMP_NOT_EQUAL, MAJOR, cards.cast_signed(), Place::Allow);
    p.push(LOAD_WORD, MINOR, SAVED_CONTEXT, 8, 0);
    for minor in [NVIDIACTL_MINOR, NVIDIA_MODESET_MINOR] {
        p.jump(JUMP_EQUAL, MINOR, minor.cast_signed(), Place::Allow);
    }
}

/// The deepest group that the map knows says it: a job passes, a container is its user's.
fn whose_is_the_group(p: &mut Assembler, trees: i32) {
    p.push(MOVE_IMMEDIATE, FOUND, 0, 0, 0);
    for level in 1..=TREE_LEVELS {
        p.push(MOVE_IMMEDIATE, CONTEXT, 0, 0, level);
        p.push(CALL, 0, 0, 0, FN_CURRENT_ANCESTOR_CGROUP);
        // It is not as deep.
        p.jump(JUMP_EQUAL, RESULT, 0, Place::AfterTrees);
        p.push(STORE_DOUBLE, FRAME, RESULT, WORD, 0);
        p.look_up(trees, WORD);
        p.jump(JUMP_EQUAL, RESULT, 0, Place::Level(level));
        p.push(LOAD_DOUBLE, FOUND, RESULT, 0, 0);
        p.here(Place::Level(level));
    }
    p.here(Place::AfterTrees);
    p.jump(JUMP_EQUAL, FOUND, 0, Place::ByNumber);
    p.jump(JUMP_EQUAL, FOUND, JOBS_IMMEDIATE, Place::Allow);
    p.push(MOVE_REGISTER, WHO, FOUND, 0, 0);
    p.jump(JUMP, 0, 0, Place::Known);
}

/// A number of somebody's range: from here on it is that somebody.
fn whose_number_is_it(p: &mut Assembler, subordinates: i32) {
    p.push(STORE_WORD_IMMEDIATE, FRAME, 0, KEY, u32::BITS.cast_signed());
    p.push(MOVE_REGISTER_32, SECOND, WHO, 0, 0);
    p.push(TO_BIG_ENDIAN, SECOND, 0, 0, u32::BITS.cast_signed());
    p.push(STORE_WORD, FRAME, SECOND, KEY_GPU, 0);
    p.look_up(subordinates, KEY);
    p.jump(JUMP_EQUAL, RESULT, 0, Place::NoSubordinate);
    p.push(LOAD_DOUBLE, WHO, RESULT, 0, 0);
}

fn is_it_said(p: &mut Assembler, passes: i32) {
    p.push(STORE_WORD, FRAME, WHO, KEY, 0);
    p.push(STORE_WORD, FRAME, MINOR, KEY_GPU, 0);
    p.look_up(passes, KEY);
    p.jump(JUMP_NOT_EQUAL, RESULT, 0, Place::Allow);
    p.push(STORE_WORD_IMMEDIATE, FRAME, 0, KEY_GPU, EVERY_GPU.cast_signed());
    p.look_up(passes, KEY);
    p.jump(JUMP_NOT_EQUAL, RESULT, 0, Place::Allow);
    p.push(MOVE_REGISTER, SECOND, WHO, 0, 0);
    p.push(SHIFT_RIGHT, SECOND, 0, 0, 32);
    p.push(STORE_WORD, FRAME, SECOND, KEY, 0);
    p.push(STORE_WORD_IMMEDIATE, FRAME, 0, KEY_GPU, EVERY_GPU_FOR_GROUP.cast_signed());
    p.look_up(passes, KEY);
    p.jump(JUMP_NOT_EQUAL, RESULT, 0, Place::Allow);
}

/// A container's runtime makes nodes for all that is in /dev, and does without where it may not: nobody opened anything.
fn is_it_opened(p: &mut Assembler) {
    p.push(LOAD_WORD, SECOND, SAVED_CONTEXT, 0, 0);
    p.push(SHIFT_RIGHT, SECOND, 0, 0, 16);
    p.jump(JUMP_EQUAL, SECOND, ACCESS_MKNOD, Place::Verdict);
}

/// One more denial of this user on this GPU. A full map counts no new ones; that denies nobody less.
fn count(p: &mut Assembler, denials: i32) {
    p.push(STORE_WORD, FRAME, WHO, KEY, 0);
    p.push(STORE_WORD, FRAME, MINOR, KEY_GPU, 0);
    p.look_up(denials, KEY);
    p.jump(JUMP_EQUAL, RESULT, 0, Place::FirstDenial);
    p.push(MOVE_IMMEDIATE, CONTEXT, 0, 0, 1);
    p.push(ATOMIC_DOUBLE, RESULT, CONTEXT, 0, 0);
    p.jump(JUMP, 0, 0, Place::Verdict);
    p.here(Place::FirstDenial);
    p.push(STORE_DOUBLE_IMMEDIATE, FRAME, 0, WORD, 1);
    p.load_map(denials);
    p.push(MOVE_REGISTER, SECOND, FRAME, 0, 0);
    p.push(ADD_IMMEDIATE, SECOND, 0, 0, i32::from(KEY));
    p.push(MOVE_REGISTER, THIRD, FRAME, 0, 0);
    p.push(ADD_IMMEDIATE, THIRD, 0, 0, i32::from(WORD));
    p.push(MOVE_IMMEDIATE, FOURTH, 0, 0, 0);
    p.push(CALL, 0, 0, 0, FN_MAP_UPDATE);
}
