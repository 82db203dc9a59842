//! Compares two exported audit logs: is one the beginning of the other, or did they fork?
//!
//! After a restore the chain continues from the last record of the backup. An export from before and one from after
//! are each whole, and differ from that record on. Feed the records of both files to a [`Comparison`]; it says of
//! which file it wants the next one, so that neither file is held in memory. Each record's hash covers all records
//! before it: equal hashes of one number mean equal logs up to there.

use super::verify::Summary;

/// The first record at which two logs differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// The newest record that both have alike; `None`: there is none in both files.
    pub same_until: Option<u64>,
    pub from: u64,
    /// Of the record `from`, in the first file and in the second.
    pub hashes: [String; 2],
}

/// What two logs are to each other. Files are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relation {
    /// They end with the same record.
    Same {
        until: u64,
    },
    /// All that `shorter` has is in the other one, which ends later.
    Beginning {
        shorter: usize,
        until: u64,
    },
    /// The first record of `later` follows the last one of the other.
    Follows {
        later: usize,
        from: u64,
    },
    /// `later` lacks records at the beginning of the other one, and continues it: both have the records `from` to
    /// `until`.
    Continues {
        later: usize,
        from: u64,
        until: u64,
    },
    Forked(Fork),
    /// They have no record in common.
    Apart,
    /// They are of two fleets.
    OtherFleet,
}

/// Takes the records of both files.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    newest: [Option<(u64, String)>; 2],
    ended: [bool; 2],
    same_until: Option<u64>,
    fork: Option<Fork>,
}

impl Comparison {
    /// Of which file the next record is wanted; `None` when both have ended.
    pub fn wants(&self) -> Option<usize> {
        let [first, second] = &self.newest;
        match (self.ended, first, second) {
            ([true, true], _, _) => None,
            ([true, false], _, _) => Some(1),
            ([false, true], _, _) => Some(0),
            ([false, false], Some((a, _)), Some((b, _))) => Some(usize::from(b < a)),
            ([false, false], None, _) => Some(0),
            ([false, false], Some(_), None) => Some(1),
        }
    }

    /// The next record of a file.
    pub fn record(&mut self, file: usize, seq: u64, hash: &str) {
        if let Some(newest) = self.newest.get_mut(file) {
            *newest = Some((seq, hash.to_owned()));
        }
        let [Some((a, of_first)), Some((b, of_second))] = &self.newest else { return };
        if a != b {
            return;
        }
        if of_first == of_second {
            self.same_until = Some(seq);
        } else if self.fork.is_none() {
            let hashes = [of_first.clone(), of_second.clone()];
            self.fork = Some(Fork { same_until: self.same_until, from: seq, hashes });
        }
        self.newest = [None, None];
    }

    /// A file has no more records.
    pub fn end(&mut self, file: usize) {
        if let Some(ended) = self.ended.get_mut(file) {
            *ended = true;
        }
    }

    /// What the files are to each other, once both have ended and are whole.
    pub fn relation(self, [first, second]: [&Summary; 2]) -> Relation {
        if first.cluster != second.cluster {
            return Relation::OtherFleet;
        }
        if let Some(fork) = self.fork {
            return Relation::Forked(fork);
        }
        if let Some(until) = self.same_until {
            let ends = [first.last_seq, second.last_seq];
            let later = usize::from(second.first_seq > first.first_seq);
            let [begins, other] = if later == 1 { [second, first] } else { [first, second] };
            return match ends {
                [a, b] if a == b => Relation::Same { until },
                _ if begins.first_seq > other.first_seq && begins.last_seq > other.last_seq => {
                    Relation::Continues { later, from: begins.first_seq, until }
                }
                [a, b] => Relation::Beginning { shorter: usize::from(b < a), until: a.min(b) },
            };
        }
        let follows = |earlier: &Summary, later: &Summary| {
            earlier.count > 0 && later.count > 0 && later.first_seq == earlier.last_seq + 1
        };
        let (later, [earlier, after]) = match follows(first, second) {
            true => (1, [first, second]),
            false if follows(second, first) => (0, [second, first]),
            false => return Relation::Apart,
        };
        if after.prev == earlier.last_hash {
            return Relation::Follows { later, from: after.first_seq };
        }
        let mut hashes = [earlier.last_hash.clone(), after.prev.clone()];
        if later == 0 {
            hashes.reverse();
        }
        Relation::Forked(Fork { same_until: None, from: earlier.last_seq, hashes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records `from..=to`; those from `fork` on are of another log.
    fn log(from: u64, to: u64, fork: u64) -> Vec<(u64, String)> {
        let hash = |seq: u64| if seq >= fork { format!("x{seq}") } else { seq.to_string() };
        (from..=to).map(|seq| (seq, hash(seq))).collect()
    }

    fn summary(log: &[(u64, String)], cluster: &str, fork: u64) -> Summary {
        let first_seq = log.first().map_or(0, |(seq, _)| *seq);
        let (last_seq, last_hash) = log.last().cloned().unwrap_or_default();
        let before = first_seq.saturating_sub(1);
        Summary {
            cluster: cluster.to_owned(),
            count: log.len() as u64,
            first_seq,
            last_seq,
            last_hash,
            prev: if before >= fork { format!("x{before}") } else { before.to_string() },
            from_genesis: first_seq == 1,
            pruned: None,
            filtered: false,
            signed_by: None,
        }
    }

    fn relation(first: (u64, u64), second: (u64, u64), fork: u64) -> Relation {
        let logs = [log(first.0, first.1, u64::MAX), log(second.0, second.1, fork)];
        let mut rest = logs.each_ref().map(|log| log.iter());
        let mut comparison = Comparison::default();
        while let Some(file) = comparison.wants() {
            match rest[file].next() {
                Some((seq, hash)) => comparison.record(file, *seq, hash),
                None => comparison.end(file),
            }
        }
        let summaries = [summary(&logs[0], "a", u64::MAX), summary(&logs[1], "a", fork)];
        comparison.relation([&summaries[0], &summaries[1]])
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn one_log_is_the_beginning_of_the_other_or_goes_on_behind_it() {
        assert_eq!(relation((1, 9), (1, 9), NEVER), Relation::Same { until: 9 });
        assert_eq!(relation((1, 9), (1, 4), NEVER), Relation::Beginning { shorter: 1, until: 4 });
        assert_eq!(relation((3, 5), (1, 9), NEVER), Relation::Beginning { shorter: 0, until: 5 });
        assert_eq!(relation((1, 4), (5, 9), NEVER), Relation::Follows { later: 1, from: 5 });
        assert_eq!(relation((5, 9), (1, 4), NEVER), Relation::Follows { later: 0, from: 5 });
        assert_eq!(relation((1, 4), (6, 9), NEVER), Relation::Apart);
        let continues = |later| Relation::Continues { later, from: 3, until: 5 };
        assert_eq!(relation((1, 5), (3, 9), NEVER), continues(1));
        assert_eq!(relation((3, 9), (1, 5), NEVER), continues(0));
        assert_eq!(relation((1, 4), (1, 0), NEVER), Relation::Apart, "one is empty");
    }

    #[test]
    fn a_fork_is_found_at_its_first_record() {
        let forked = |same_until, from, hashes: [&str; 2]| {
            Relation::Forked(Fork { same_until, from, hashes: hashes.map(str::to_owned) })
        };
        assert_eq!(relation((1, 9), (1, 7), 5), forked(Some(4), 5, ["5", "x5"]));
        assert_eq!(relation((1, 5), (1, 9), 5), forked(Some(4), 5, ["5", "x5"]));
        assert_eq!(relation((1, 9), (6, 7), 5), forked(None, 6, ["6", "x6"]));
        assert_eq!(relation((1, 5), (6, 9), 5), forked(None, 5, ["5", "x5"]), "by what it follows");
    }

    #[test]
    fn logs_of_two_fleets_are_not_compared() {
        let log = log(1, 2, NEVER);
        let summaries = [summary(&log, "a", NEVER), summary(&log, "b", NEVER)];
        let relation = Comparison::default().relation([&summaries[0], &summaries[1]]);
        assert_eq!(relation, Relation::OtherFleet);
    }
}
