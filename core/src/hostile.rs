//! Hostile bytes for the decoders of this crate: none panics, none takes what it should refuse.
#![allow(clippy::unwrap_used, reason = "tests")]

use fleet_hostile_bytes::{throw_at, throw_text_at};

use crate::audit::export::{Exporter, Format};
use crate::audit::verify::verify_text;
use crate::backup::{Check, Parser};
use crate::command::Envelope;
use crate::desired::DesiredNode;
use crate::gpu::short_model;
use crate::id::{AllocationId, JobId, ReservationId};
use crate::image::ImageRef;
use crate::name::{GpuUuid, NodeName, ProjectName, UserName};
use crate::rejection::Rejection;
use crate::state::Fsm;
use crate::time::Timestamp;

const BACKUP: &[u8] = include_bytes!("../testdata/backup-v1");
const SNAPSHOT: &[u8] = include_bytes!("../testdata/snapshot-v1.json");
const LOG: &str = include_str!("../testdata/log-v1.jsonl");

/// Some of the commands of the golden log: the others are of the same kinds.
fn commands() -> Vec<&'static str> {
    LOG.lines().step_by(5).collect()
}

#[test]
fn backups() {
    throw_at(&[BACKUP], |bytes| {
        let (mut parser, mut check) = (Parser::new(), Check::new());
        let mut read = || {
            for piece in bytes.chunks(97) {
                for part in parser.feed(piece).ok()? {
                    check.part(part).ok()?;
                }
            }
            Some(())
        };
        let whole = read().is_some() && parser.finish().is_ok() && check.finish().is_ok();
        assert!(!whole || bytes == BACKUP, "a damaged backup is taken for a whole one");
        whole
    });
}

#[test]
fn audit_exports() {
    let mut fsm = Fsm::new();
    let envelopes = LOG.lines().filter_map(|line| serde_json::from_str::<Envelope>(line).ok());
    let records: Vec<_> = (1..)
        .zip(envelopes.take(12))
        .filter_map(|(index, envelope)| fsm.apply(index, &envelope).audit)
        .collect();
    assert!(records.len() > 3, "{}", records.len());
    let export = |format| {
        let mut exporter = Exporter::new(format, "fleet-a", Timestamp(9), false);
        let mut text: String =
            exporter.header().map(|line| format!("{line}\n")).unwrap_or_default();
        for record in &records {
            text.push_str(&exporter.record(record));
            text.push('\n');
        }
        text + &exporter.trailer(None) + "\n"
    };
    let good = [export(Format::JsonLines), export(Format::Csv)];
    let whole = verify_text(&good[0], None).unwrap();
    assert_eq!(
        (whole.count, &whole.last_hash),
        (records.len() as u64, &records.last().unwrap().hash)
    );
    throw_text_at(&good, |text| {
        // The last hash is that of the whole chain: what has it has the same records.
        let verified = verify_text(text, None).ok();
        assert!(verified.as_ref().is_none_or(|found| *found == whole), "{verified:?}");
        verified.is_some()
    });
}

#[test]
fn snapshots_of_the_state() {
    throw_at(&[SNAPSHOT], |bytes| Fsm::from_snapshot(bytes).is_ok());
}

#[test]
fn commands_of_the_log() {
    throw_at(&commands(), |bytes| serde_json::from_slice::<Envelope>(bytes).is_ok());
}

/// A command that can be read may still be nonsense: it is refused, and the state keeps its invariants.
#[test]
fn commands_that_can_be_read_are_applied_or_refused() {
    let state = Fsm::from_snapshot(SNAPSHOT).unwrap();
    throw_at(&commands(), |bytes| {
        let Ok(envelope) = serde_json::from_slice::<Envelope>(bytes) else { return false };
        let mut fsm = state.clone();
        fsm.apply(fsm.applied() + 1, &envelope);
        fsm.check_invariants().unwrap_or_else(|broken| panic!("{broken}: {envelope:?}"));
        true
    });
}

/// What a controller orders a node to do.
#[test]
fn orders_for_nodes() {
    let state = Fsm::from_snapshot(SNAPSHOT).unwrap();
    let orders = state.nodes().keys().map(|node| serde_json::to_vec(&state.desired(node, &[])));
    let good: Vec<Vec<u8>> = orders.filter_map(Result::ok).collect();
    assert!(!good.is_empty());
    throw_at(&good, |bytes| serde_json::from_slice::<DesiredNode>(bytes).is_ok());
}

#[test]
fn refusals() {
    let good = [
        serde_json::to_string(&Rejection::Denied { needs: "an admin".to_owned() }),
        serde_json::to_string(&Rejection::field("gpus", "too many")),
    ];
    let good: Vec<String> = good.into_iter().flatten().collect();
    throw_at(&good, |bytes| {
        let read = serde_json::from_slice::<Rejection>(bytes);
        read.is_ok_and(|rejection| !rejection.to_string().is_empty())
    });
}

#[test]
fn names_and_ids() {
    let good =
        ["titan01", "ada", "default", "GPU-00000001-1111-2222-3333-444444444444", "job-4k7wq2"];
    throw_text_at(&good, |text| {
        let parsed = [
            NodeName::parse(text).ok().map(|name| name.to_string()),
            UserName::parse(text).ok().map(|name| name.to_string()),
            ProjectName::parse(text).ok().map(|name| name.to_string()),
            GpuUuid::parse(text).ok().map(|name| name.to_string()),
            JobId::parse(text).ok().map(|id| id.to_string()),
            ReservationId::parse(text).ok().map(|id| id.to_string()),
            AllocationId::parse(text).ok().map(|id| id.to_string()),
        ];
        let mut parsed = parsed.iter().flatten().peekable();
        let accepted = parsed.peek().is_some();
        assert!(parsed.all(|name| name == text), "{text:?}");
        accepted
    });
}

#[test]
fn names_of_images() {
    let good = [
        "host",
        "nvcr.io/nvidia/cuda:12.4.1-base-ubuntu22.04",
        "docker-daemon:mine:latest",
        "oci:/images/a:tag",
        "me/it@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ];
    throw_text_at(&good, |text| {
        let Ok(image) = text.parse::<ImageRef>() else { return false };
        assert_eq!(image.to_string().parse::<ImageRef>().ok(), Some(image), "{text:?}");
        true
    });
}

#[test]
fn names_of_products_that_the_driver_gives() {
    throw_text_at(&["Tesla V100-SXM2-16GB", "NVIDIA GeForce GTX TITAN X"], |text| {
        let model = short_model(text);
        assert!(
            model.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "{text:?}: {model:?}"
        );
        !model.is_empty()
    });
}
