//! The short way of docs/first-day.md, from nothing to people who are held to their reservations and back again, as it
//! is typed there. Followed by the case `smoke`.
//!
//! All its commands count, no matter which user types them. A test adds only what a machine without a driver and people
//! without keys lack.

use anyhow::{Result, anyhow, ensure};

use crate::page::Page;

const HEADING: &str = "The short way";
/// There and back again takes fewer commands.
const COMMANDS_BELOW: usize = 15;

/// Its blocks, in their order.
#[derive(Debug)]
pub(crate) struct ShortWay {
    /// As root on the controller's machine.
    pub(crate) controller: Vec<String>,
    /// As root on the node.
    pub(crate) node: Vec<String>,
    /// As ada on the controller's machine.
    pub(crate) token: Vec<String>,
    /// As root on the node.
    pub(crate) join: Vec<String>,
    /// As ada on the controller's machine: a job, enforcement, a reservation, a login by ssh.
    pub(crate) people: [String; 4],
    /// As root everywhere.
    pub(crate) back: Vec<String>,
}

impl ShortWay {
    pub(crate) fn of(page: &Page) -> Result<Self> {
        let blocks = page.blocks(HEADING)?;
        let count = blocks.iter().map(Vec::len).sum::<usize>();
        ensure!(count < COMMANDS_BELOW, "the short way takes {count} commands: {blocks:?}");
        let other = || anyhow!("the short way is not what is followed here");
        let blocks: [Vec<String>; 6] = blocks.try_into().map_err(|_| other())?;
        let [controller, node, token, join, people, back] = blocks;
        let people = people.try_into().map_err(|_| other())?;
        let way = Self { controller, node, token, join, people, back };
        ensure!(way.is_known(), "{}: {way:?}", other());
        Ok(way)
    }

    /// What each block is about, so that nobody types a line where it does not belong.
    fn is_known(&self) -> bool {
        let begins =
            |lines: &[String], word: &str| lines.first().is_some_and(|l| l.starts_with(word));
        let people = ["fleet run ", "fleet node enforce ", "fleet reserve ", "fleet ssh"];
        begins(&self.controller, "apt install ")
            && begins(&self.node, "apt install ")
            && begins(&self.token, "fleet node token create ")
            && begins(&self.join, "fleet-agent join ")
            && self.people.iter().zip(people).all(|(line, word)| line.starts_with(word))
            && begins(&self.back, "dpkg --purge ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_way_stands_on_the_page_and_is_short() {
        ShortWay::of(&Page::operations().unwrap()).unwrap();
    }
}
