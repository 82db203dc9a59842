//! The commands that the pages show can be typed: each line in a block of code, and each verb and option in a sentence.

use fleet_page_commands::{all_can_be_typed, shown};

use super::*;

#[test]
fn each_command_of_the_pages_can_be_typed() {
    all_can_be_typed(Cli::command(), (80, 300), put_right);
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let page = "Type `fleet ps --al` or `fleet fly NODE`, or `fleet node drain`.\n\n\
                ```\nfleet reserve -G 1 \\\n    -t 1h   # an hour\nfleet ps --nobody\nfleet extend\n\
                fleet run -G 1 -- sh -c 'x | y'   # a job\nfleet-agent fly\n```\n";
    let mut cli = Cli::command();
    let all = shown("fleet", "p.md", page);
    let wrong = all.iter().filter_map(|shown| shown.wrong(&mut cli, put_right));
    let wrong: Vec<String> = wrong.collect();
    let places: Vec<&str> = wrong.iter().map(|text| text.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["p.md:1", "p.md:1", "p.md:6", "p.md:7"], "{wrong:?}");
}
