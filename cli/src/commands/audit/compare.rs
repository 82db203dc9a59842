//! `audit verify FILE OTHER`: checks both exports and says what they are to each other.
//!
//! The rules are [`fleet_core::audit::compare`]. Both files are read side by side, and neither is held in memory.

use std::io::BufRead;
use std::path::Path;

use fleet_core::audit::compare::{Comparison, Fork, Relation};
use fleet_core::audit::verify::Summary;

use super::{Reading, name_of, open, pruned_said};
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::print;

pub(super) fn run(
    context: &Context,
    paths: [&Path; 2],
    authority: Option<&[Vec<u8>]>,
) -> Result<Exit, Failure> {
    let [first, second] = paths;
    if first == Path::new("-") && second == Path::new("-") {
        return Err(Failure::usage("OTHER", "standard input can be only one of the two files"));
    }
    let (relation, summaries) = compared([open(first)?, open(second)?], paths, authority)?;
    let names = paths.map(name_of);
    if context.json {
        print(&format!("{:#}\n", json(&relation, &summaries, &names)))?;
    }
    let said = sentence(&relation, &names);
    match relation {
        Relation::Same { .. }
        | Relation::Beginning { .. }
        | Relation::Follows { .. }
        | Relation::Continues { .. } => {
            if !context.json {
                let pruned =
                    begins_later(&relation).and_then(|later| summaries[later].pruned.as_ref());
                let pruned = pruned.map(|pruned| format!("{}\n", pruned_said(context, pruned)));
                print(&format!("{said}\n{}", pruned.unwrap_or_default()))?;
            }
            Ok(Exit::Done)
        }
        Relation::Forked(_) => {
            let failure = Failure::new(Exit::Failed, said);
            Err(failure.hint("a restore from a backup does this; keep both exports"))
        }
        Relation::Apart | Relation::OtherFleet => Err(Failure::new(Exit::Failed, said)),
    }
}

/// Which file lacks the beginning of the other one.
fn begins_later(relation: &Relation) -> Option<usize> {
    match relation {
        Relation::Follows { later, .. } | Relation::Continues { later, .. } => Some(*later),
        _ => None,
    }
}

fn compared<I: BufRead>(
    inputs: [I; 2],
    paths: [&Path; 2],
    authority: Option<&[Vec<u8>]>,
) -> Result<(Relation, [Summary; 2]), Failure> {
    let [first, second] = inputs;
    let mut readings = [Reading::new(first, paths[0]), Reading::new(second, paths[1])];
    let mut comparison = Comparison::default();
    while let Some(file) = comparison.wants() {
        match readings[file].record()? {
            Some((seq, hash)) => comparison.record(file, seq, &hash),
            None => comparison.end(file),
        }
    }
    let [first, second] = readings;
    let summaries = [first.finish(authority)?, second.finish(authority)?];
    Ok((comparison.relation(summaries.each_ref()), summaries))
}

fn sentence(relation: &Relation, [first, second]: &[String; 2]) -> String {
    let in_order = |file: &usize| if *file == 0 { (first, second) } else { (second, first) };
    match relation {
        Relation::Same { until } => {
            format!("both are whole, and the same up to their end, record {until}")
        }
        Relation::Beginning { shorter, until } => {
            let (shorter, longer) = in_order(shorter);
            format!(
                "both are whole. Up to record {until}, the end of {shorter}, they are the same; {longer} has more"
            )
        }
        Relation::Follows { later, from } => {
            let (later, earlier) = in_order(later);
            format!("both are whole. {later} continues {earlier}, from record {from} on")
        }
        Relation::Continues { later, from, until } => {
            let (later, earlier) = in_order(later);
            format!(
                "both are whole. {later} follows {earlier}: records {from} to {until} are in both and the same; {later} has more behind them, {earlier} before them"
            )
        }
        Relation::Forked(fork) => forked(fork, first, second),
        Relation::Apart => {
            format!("{first} and {second} are whole, but have no record in common to compare")
        }
        Relation::OtherFleet => {
            format!("{first} and {second} are whole, but of two different fleets")
        }
    }
}

fn forked(Fork { same_until, from, hashes }: &Fork, first: &str, second: &str) -> String {
    let [of_first, of_second] = hashes;
    let same = match same_until {
        Some(until) => format!("are the same up to record {until}, and differ"),
        None => "differ".to_owned(),
    };
    format!(
        "{first} and {second} fork. Nobody changed either of them, but they {same} from record {from} on (hash {of_first} in {first}, {of_second} in {second})"
    )
}

fn json(relation: &Relation, summaries: &[Summary; 2], names: &[String; 2]) -> serde_json::Value {
    let (word, same_until, differs_from) = match relation {
        Relation::Same { until } => ("same", Some(*until), None),
        Relation::Beginning { until, .. } => ("beginning", Some(*until), None),
        Relation::Follows { .. } => ("follows", None, None),
        Relation::Continues { until, .. } => ("follows", Some(*until), None),
        Relation::Forked(fork) => ("forked", fork.same_until, Some(fork.from)),
        Relation::Apart => ("apart", None, None),
        Relation::OtherFleet => ("other_fleet", None, None),
    };
    let hashes = match relation {
        Relation::Forked(fork) => Some(&fork.hashes),
        _ => None,
    };
    let files: Vec<serde_json::Value> = summaries
        .iter()
        .zip(names)
        .map(|(summary, name)| {
            serde_json::json!({
                "file": name,
                "cluster": summary.cluster,
                "records": summary.count,
                "first_seq": summary.first_seq,
                "last_seq": summary.last_seq,
                "last_hash": summary.last_hash,
            })
        })
        .collect();
    serde_json::json!({
        "schema": "fleet.audit_comparison/v1",
        "relation": word,
        "same_until_seq": same_until,
        "differs_from_seq": differs_from,
        "hashes": hashes,
        "files": files,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::log;
    use super::*;

    const PATHS: [&str; 2] = ["a.jsonl", "b.jsonl"];

    fn said(first: &str, second: &str) -> (String, serde_json::Value) {
        let inputs = [first.as_bytes(), second.as_bytes()];
        let (relation, summaries) = compared(inputs, PATHS.map(Path::new), None).unwrap();
        let names = PATHS.map(str::to_owned);
        (sentence(&relation, &names), json(&relation, &summaries, &names))
    }

    #[test]
    fn exports_of_one_log_are_the_same_up_to_the_end_of_the_shorter() {
        let (same, _) = said(&log(3, u64::MAX), &log(3, u64::MAX));
        assert_eq!(same, "both are whole, and the same up to their end, record 3");
        let (beginning, json) = said(&log(5, u64::MAX), &log(3, u64::MAX));
        assert_eq!(
            beginning,
            "both are whole. Up to record 3, the end of b.jsonl, they are the same; a.jsonl has more"
        );
        assert_eq!((&json["relation"], &json["same_until_seq"]), (&"beginning".into(), &3.into()));
    }

    #[test]
    fn a_fork_is_named_by_its_record_and_both_hashes() {
        let (forked, json) = said(&log(5, u64::MAX), &log(9, 4));
        let begins = "a.jsonl and b.jsonl fork. Nobody changed either of them, but they are the same up to record 3, and differ from record 4 on (hash ";
        assert!(forked.starts_with(begins), "{forked}");
        for hash in json["hashes"].as_array().unwrap() {
            assert!(forked.contains(hash.as_str().unwrap()), "{forked}");
        }
        assert_eq!((&json["relation"], &json["differs_from_seq"]), (&"forked".into(), &4.into()));
    }

    #[test]
    fn a_file_that_was_changed_is_not_compared() {
        let good = log(3, u64::MAX);
        let changed = good.replacen("job-a", "job-b", 1);
        let inputs = [good.as_bytes(), changed.as_bytes()];
        let failure = compared(inputs, PATHS.map(Path::new), None).unwrap_err();
        assert!(failure.message.starts_with("b.jsonl is not a whole audit log: line 1"));
    }
}
