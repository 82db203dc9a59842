//! Subordinate uids: the numbers that a user's containers without root run under, and whose they are.
//!
//! From `/etc/subuid` (subuid(5)). The gate's task turns it into numbers and tells the kernel; code that asks whose a
//! process is asks [`Subordinates`]; doctor asks the file. Nothing here asks a name service by itself.
//!
//! Directory services and hasty admins can give a person a number inside the range of another user. Such a person never
//! counts as that user: the numbers of all known people are left out of the ranges.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Where the ranges stand.
pub const SUBUID_FILE: &str = "/etc/subuid";
/// Most lines of the file that count.
const LINES_MAX: usize = 4_096;
/// Below are people and system accounts, never a range: such a line would make one person another.
const FIRST_MIN: u32 = 65_536;
/// Most people whose own number is inside a range.
const PEOPLE_MAX: usize = 4_096;
/// The number that stands for no user (`(uid_t) -1`), and is in no range.
const NO_USER: u32 = u32::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
struct SubordinateRange {
    owner: String,
    first: u32,
    last: u32,
}

/// What the file says, by first number; a range that reaches into another one is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubuidFile {
    lines: Vec<SubordinateRange>,
    /// Lines that cannot be meant, or are too many.
    pub left_out: usize,
}

impl SubuidFile {
    /// Lines are `OWNER:FIRST:COUNT`, the owner a name or a number. What cannot be meant is left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let meant = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let mut by_first: BTreeMap<u32, SubordinateRange> = BTreeMap::new();
        let mut left_out = 0;
        for text in meant {
            let clear = |line: &SubordinateRange| {
                let before = by_first.range(..=line.last).next_back();
                before.is_none_or(|(_, before)| before.last < line.first)
            };
            match line(text).filter(|line| by_first.len() < LINES_MAX && clear(line)) {
                Some(line) => drop(by_first.insert(line.first, line)),
                None => left_out += 1,
            }
        }
        Self { lines: by_first.into_values().collect(), left_out }
    }

    /// The owner as it is written, a name or a number.
    #[must_use]
    pub fn owner(&self, uid: u32) -> Option<&str> {
        let at = self.lines.partition_point(|line| line.first <= uid).checked_sub(1)?;
        self.lines.get(at).filter(|line| uid <= line.last).map(|line| line.owner.as_str())
    }

    /// The owners that are written as names.
    pub fn names(&self) -> BTreeSet<&str> {
        let owners = self.lines.iter().map(|line| line.owner.as_str());
        owners.filter(|owner| owner.parse::<u32>().is_err()).collect()
    }

    /// Resolves owners to numbers, and leaves out those of people. Ranges of root and of unknown users belong to
    /// nobody.
    pub fn resolve(
        &self,
        uid_of: impl Fn(&str) -> Option<u32>,
        people: impl IntoIterator<Item = u32>,
    ) -> Subordinates {
        let range = |line: &SubordinateRange| {
            let owner = line.owner.parse().ok().or_else(|| uid_of(&line.owner));
            let owner = owner.filter(|uid| *uid != 0 && *uid != NO_USER)?;
            Some(Range { first: line.first, last: line.last, owner })
        };
        let ranges = self.lines.iter().filter_map(range).collect();
        let mut subordinates = Subordinates { ranges, people: BTreeSet::new() };
        let people = people.into_iter().filter(|uid| subordinates.range(*uid).is_some());
        subordinates.people = people.take(PEOPLE_MAX).collect();
        subordinates
    }
}

fn line(text: &str) -> Option<SubordinateRange> {
    let fields: Vec<&str> = text.split(':').collect();
    let [owner, first, count] = fields[..] else { return None };
    let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
    let last = first.checked_add(count.checked_sub(1)?)?;
    let good = !owner.is_empty() && first >= FIRST_MIN && last != NO_USER;
    good.then(|| SubordinateRange { owner: owner.to_owned(), first, last })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Range {
    first: u32,
    last: u32,
    owner: u32,
}

/// Numbers that begin alike: `bits` of them, counted from the highest, are those of `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    pub first: u32,
    pub bits: u32,
}

/// Whose numbers are whose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subordinates {
    /// By first number.
    ranges: Vec<Range>,
    /// Numbers in one of them that are people's.
    people: BTreeSet<u32>,
}

impl Subordinates {
    fn range(&self, uid: u32) -> Option<&Range> {
        let at = self.ranges.partition_point(|range| range.first <= uid).checked_sub(1)?;
        self.ranges.get(at).filter(|range| uid <= range.last)
    }

    /// The user whose range this number is in; `None` if it is in no range, or is a person's own.
    #[must_use]
    pub fn owner(&self, uid: u32) -> Option<u32> {
        let range = self.range(uid).filter(|_| !self.people.contains(&uid));
        range.map(|range| range.owner)
    }

    /// The same as prefixes, as a kernel looks up the longest, with the owner of each. People are their own.
    pub fn prefixes(&self) -> impl Iterator<Item = (Prefix, u32)> + '_ {
        let of_range = |range: &Range| {
            let owner = range.owner;
            prefixes(range.first, range.last).into_iter().map(move |prefix| (prefix, owner))
        };
        let people = self.people.iter().map(|uid| (Prefix { first: *uid, bits: u32::BITS }, *uid));
        // Of two for one number the later one counts.
        self.ranges.iter().flat_map(of_range).chain(people)
    }
}

/// The fewest prefixes that cover exactly these numbers: 62 at most.
fn prefixes(first: u32, last: u32) -> Vec<Prefix> {
    let (mut at, end) = (u64::from(first), u64::from(last) + 1);
    let mut found = Vec::new();
    while at < end {
        // As many as its place allows, and as are left.
        let aligned = at.trailing_zeros().min(u32::BITS);
        let size = aligned.min((end - at).ilog2());
        let first = u32::try_from(at).unwrap_or(u32::MAX);
        found.push(Prefix { first, bits: u32::BITS - size });
        at += 1 << size;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid_of(name: &str) -> Option<u32> {
        match name {
            "ada" => Some(1000),
            "eve" => Some(1001),
            "root" => Some(0),
            _ => None,
        }
    }

    #[test]
    fn a_number_of_a_range_is_its_owners_and_the_next_ones_are_not() {
        let text = "# people\nada:100000:65536\n\neve:165536:65536\n1002:300000:1\n";
        let owners = SubuidFile::parse(text).resolve(uid_of, []);
        let table = [
            (99_999, None),
            (100_000, Some(1000)),
            (165_535, Some(1000)),
            (165_536, Some(1001)),
            (231_071, Some(1001)),
            (231_072, None),
            (300_000, Some(1002)),
            (300_001, None),
            (0, None),
            (1000, None),
            (u32::MAX, None),
        ];
        for (uid, owner) in table {
            assert_eq!(owners.owner(uid), owner, "{uid}");
        }
    }

    #[test]
    fn a_person_in_somebodys_range_is_not_that_somebody() {
        let file = SubuidFile::parse("ada:100000:65536");
        let owners = file.resolve(uid_of, [100_500, 1000, 99_999]);
        assert_eq!((owners.owner(100_500), owners.owner(100_501)), (None, Some(1000)));
        let own = Prefix { first: 100_500, bits: 32 };
        let found: Vec<(Prefix, u32)> = owners.prefixes().collect();
        assert!(found.contains(&(own, 100_500)) && found.len() > 1, "{found:?}");
        assert_eq!(found.iter().filter(|(_, owner)| *owner != 1000).count(), 1, "{found:?}");
    }

    #[test]
    fn what_cannot_be_meant_makes_nobody_somebody_else() {
        let bad = [
            "ada:1000:65536",
            "ada:100000:0",
            "ada:100000",
            "ada:100000:1:2",
            ":100000:10",
            "ada:-1:10",
            "ada:4294967295:1",
            "ada:4294967000:296",
            "ada:4294967290:100",
            "root:100000:10",
            "0:100000:10",
            "4294967295:100000:10",
            "gone:100000:10",
        ];
        for text in bad {
            let owners = SubuidFile::parse(text).resolve(uid_of, []);
            assert_eq!(owners, Subordinates::default(), "{text}");
        }
        // A range that reaches into an earlier line's, from either side or around it.
        for second in ["eve:100009:10", "eve:99990:11", "eve:99990:100", "eve:100003:2"] {
            let file = SubuidFile::parse(&format!("ada:100000:10\n{second}\n"));
            assert_eq!(file.owner(100_009), Some("ada"), "{second}");
            assert_eq!(file.owner(100_010), None, "{second}");
            assert_eq!(file.owner(99_990), None, "{second}");
            assert_eq!(file.left_out, 1);
        }
    }

    /// Each number of a range has one prefix, and no other number has one.
    #[test]
    fn prefixes_cover_a_range_and_nothing_else() {
        let covers = |prefix: &Prefix, uid: u32| {
            let shift = u32::BITS - prefix.bits;
            u64::from(uid) >> shift == u64::from(prefix.first) >> shift
        };
        let ranges =
            [(100_000, 165_535), (65_536, 131_071), (99_999, 99_999), (70_001, 70_013), (1, 6)];
        for (first, last) in ranges {
            let found = prefixes(first, last);
            assert!(found.len() <= 62);
            for uid in first.saturating_sub(100)..=last + 100 {
                let times = found.iter().filter(|prefix| covers(prefix, uid)).count();
                let inside = (first..=last).contains(&uid);
                assert_eq!(times, usize::from(inside), "{uid} of {first}..={last}");
            }
        }
        assert_eq!(prefixes(0, u32::MAX), [Prefix { first: 0, bits: 0 }]);
    }
}
