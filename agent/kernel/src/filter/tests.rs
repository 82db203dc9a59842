#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn majors_come_from_the_character_section() {
    let text = "Character devices:\n  1 mem\n195 nvidia-frontend\n511 nvidia-uvm\n\nBlock devices:\n  7 nvidia\n";
    let majors = NvidiaMajors::parse(text);
    assert_eq!(majors, NvidiaMajors { cards: Some(195), uvm: Some(511) });
    let newer = NvidiaMajors::parse("Character devices:\n236 nvidia\n");
    assert_eq!(newer, NvidiaMajors { cards: Some(236), uvm: None });
}

#[test]
fn a_job_without_gpus_reaches_no_driver_node() {
    assert!(gpu_rules(NvidiaMajors { cards: Some(195), uvm: Some(511) }, &[]).is_empty());
}

#[test]
fn gpu_rules_never_allow_creating_a_node_and_name_every_minor() {
    let rules = gpu_rules(NvidiaMajors { cards: Some(195), uvm: Some(511) }, &[3]);
    assert!(rules.iter().all(|rule| !rule.access.mknod && rule.minor.is_some()));
    let cards: Vec<_> =
        rules.iter().filter(|rule| rule.major == 195).filter_map(|rule| rule.minor).collect();
    assert_eq!(cards, [3, 255, 254]);
}

#[test]
fn too_many_rules_are_refused() {
    let rules = vec![DeviceRule::char(1, Some(3), Access::ALL); RULES_MAX + 1];
    assert!(matches!(assemble(&rules), Err(FilterError::TooManyRules { .. })));
}

/// Runs the assembled program on the test's own tiny machine: what it decides is what counts.
fn decide(rules: &[DeviceRule], kind: i32, access: i32, major: u32, minor: u32) -> bool {
    let code = assemble(rules).unwrap();
    let context = [i64::from(access << 16 | kind), i64::from(major), i64::from(minor)];
    let mut registers = [0_i64; 11];
    let mut at = 0_usize;
    loop {
        let line = code[at];
        let (to, from) = (usize::from(line.registers & 15), usize::from(line.registers >> 4));
        let value = i64::from(line.immediate);
        at += 1;
        match line.code {
            0x61 => registers[to] = context[usize::try_from(line.offset / 4).unwrap()],
            0xb7 => registers[to] = value,
            0xbf => registers[to] = registers[from],
            0x57 => registers[to] &= value,
            0x77 => registers[to] >>= value,
            0x55 if registers[to] != value => at += usize::try_from(line.offset).unwrap(),
            0x55 => {}
            0x95 => return registers[0] != 0,
            other => panic!("unknown opcode {other:#x}"),
        }
    }
}

#[test]
fn the_program_allows_the_list_and_nothing_else() {
    const CHAR: i32 = 2;
    const BLOCK: i32 = 1;
    const MKNOD: i32 = 1;
    const READ: i32 = 2;
    const WRITE: i32 = 4;
    let mut rules = standard_rules();
    rules.extend(gpu_rules(NvidiaMajors { cards: Some(195), uvm: None }, &[1]));
    let ask = |kind, access, major, minor| decide(&rules, kind, access, major, minor);
    assert!(ask(CHAR, READ | WRITE, 195, 1));
    assert!(ask(CHAR, READ, 195, 255));
    assert!(!ask(CHAR, READ, 195, 0));
    assert!(!ask(CHAR, READ, 195, 2));
    assert!(!ask(CHAR, MKNOD, 195, 1));
    assert!(!ask(CHAR, MKNOD | READ, 195, 1));
    assert!(!ask(BLOCK, READ, 195, 1));
    assert!(ask(CHAR, MKNOD, 1, 3));
    assert!(ask(CHAR, READ | WRITE, 136, 77));
    assert!(!ask(CHAR, READ, 10, 229));
    assert!(!ask(BLOCK, READ, 254, 0));
    assert!(!decide(&[], CHAR, READ, 1, 3));
}
