//! Backups of a running and of a stopped store, restored into an empty folder.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleet_core::audit::prune::{KEEP_MIN, Prune};
use fleet_core::audit::verify::Verifier;
use fleet_core::command::{
    AuditCommand, AuthorityCommand, ClusterCommand, ENVELOPE_VERSION, RefusedRequests,
};
use fleet_core::name::UserName;
use fleet_core::{Actor, AuthMethod, Command, Envelope, Fsm, Timestamp, Who};

use super::*;
use crate::audit::{AuditStore, Query};
use crate::clock::wall;
use crate::config::Config;
use crate::identity::ControllerIdentity;
use crate::pki::{Authority, Keyring};
use crate::raft::{self, FatalHook, PlaintextConnector, RaftConfig, RaftHandle, Versions};

const PATIENCE: Duration = Duration::from_secs(30);

/// A controller's folder with an authority and an identity, as `init` leaves it.
struct Place {
    dir: tempfile::TempDir,
    config: Config,
}

impl Place {
    fn empty() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("controller.toml");
        let data = dir.path().join("data");
        let text = format!("data_dir = {data:?}\nlisten = \"127.0.0.1:7443\"\n");
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&file).unwrap();
        Place { dir, config }
    }

    fn with_authority() -> Place {
        let place = Place::empty();
        std::fs::create_dir(&place.config.data_dir).unwrap();
        let authority = Authority::create(&place.config.pki_dir(), wall()).unwrap();
        let identity = ControllerIdentity::new(authority.cluster().to_string(), 1);
        identity.store(&place.config.data_dir).unwrap();
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn start(&self, create: bool) -> RaftHandle {
        let identity = ControllerIdentity::load(&self.config.data_dir).unwrap();
        let raft = raft::start(RaftConfig {
            cluster: identity.cluster.clone(),
            node: identity.node,
            dir: self.config.data_dir.join("raft"),
            create,
            members: BTreeMap::from([(identity.node, "127.0.0.1:7443".to_owned())]),
            connector: Arc::new(PlaintextConnector),
            versions: Versions::BUILT,
            fatal: FatalHook::with(|fatal| panic!("the process would have ended: {fatal}")),
        })
        .await
        .unwrap();
        let mut leadership = raft.leadership();
        let leads = leadership.wait_for(|l| l.is_leader);
        tokio::time::timeout(PATIENCE, leads).await.unwrap().unwrap();
        if create {
            let cluster = fleet_core::id::ClusterId::parse(&identity.cluster).unwrap();
            give(&raft, Command::Cluster(ClusterCommand::Init { cluster, incarnation: 1 })).await;
        }
        raft
    }
}

async fn give(raft: &RaftHandle, command: Command) {
    give_as(raft, Actor::controller(), command).await;
}

async fn give_as(raft: &RaftHandle, actor: Actor, command: Command) {
    let envelope = Envelope {
        v: ENVELOPE_VERSION,
        actor,
        proposed_at: Timestamp(1_000),
        request: None,
        command,
    };
    raft.propose(envelope).await.unwrap().reply.unwrap();
}

fn root() -> Actor {
    let name = UserName::parse("root").unwrap();
    let who = Who::User { name, admin: true, groups: Default::default() };
    Actor { who, method: AuthMethod::LocalSocket, serial: None }
}

/// Prunes the audit log up to record `through`, as the API does, at a time that allows it.
async fn prune(raft: &RaftHandle, through: u64) {
    let found = raft.audit().prunable(through).await.unwrap().unwrap();
    let prune = Prune { through, hash: found.hash, until: found.until };
    let envelope = Envelope {
        v: ENVELOPE_VERSION,
        actor: root(),
        proposed_at: Timestamp(1_000) + KEEP_MIN,
        request: None,
        command: Command::Audit(AuditCommand::Prune(prune)),
    };
    raft.propose(envelope).await.unwrap().reply.unwrap();
}

async fn note(raft: &RaftHandle, n: u64) {
    let refused = RefusedRequests {
        principal: format!("user:u{n}"),
        action: "submit_job".to_owned(),
        code: "denied".to_owned(),
        count: n,
    };
    give(raft, Command::Audit(AuditCommand::RecordRefusals { refusals: vec![refused] })).await;
}

async fn lines(audit: &AuditStore) -> Vec<String> {
    let page = audit.query(Query::default()).await.unwrap();
    page.records.into_iter().map(|record| record.line).collect()
}

/// One chain from its beginning.
fn is_whole(lines: &[String]) {
    let mut verifier = Verifier::new();
    lines.iter().for_each(|line| verifier.line(line).unwrap());
    assert_eq!(verifier.progress().0, lines.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_taken_while_others_write_is_of_one_moment() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let (writing, stopped) = (raft.clone(), stop.clone());
    let writer = tokio::spawn(async move {
        let mut n = 0;
        while !stopped.is_cancelled() {
            n += 1;
            note(&writing, n).await;
        }
    });
    let mut last = 0;
    for round in 0..10 {
        let path = place.file(&format!("{round}.backup"));
        let written = write(Contents::of(&raft, &place.config.pki_dir()), &path).await.unwrap();
        // `check` compares state, audit log and description.
        let checked = check(&path).unwrap();
        assert_eq!(checked.fsm.applied(), written.manifest.index);
        assert!(checked.manifest.audit_records >= last);
        last = checked.manifest.audit_records;
        assert_eq!(checked.files.keys().collect::<Vec<_>>(), ["ca.crt", "ca.key"]);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(last > 1, "nobody wrote");
    stop.cancel();
    writer.await.unwrap();
    raft.shutdown().await;
}

/// The state says which authority signs, the files hold the keys: a backup has both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_middle_of_an_exchange_of_the_authority_both_come_back() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    let keyring = Keyring::load(&place.config.pki_dir()).unwrap();
    let (from, to) = keyring.begin(wall()).unwrap();
    let pins = [to.pin.clone(), from.pin.clone()];
    give_as(&raft, root(), Command::Authority(AuthorityCommand::StartRotation { from, to })).await;
    let controllers = std::collections::BTreeSet::new();
    give(&raft, Command::Authority(AuthorityCommand::BeginMoving { controllers })).await;
    keyring.follow(&raft.read(|fsm| fsm.authorities().clone())).unwrap();
    let path = place.file("a.backup");
    write(Contents::of(&raft, &place.config.pki_dir()), &path).await.unwrap();
    raft.shutdown().await;

    let anew = Place::empty();
    restore(&anew.config, &path).await.unwrap();
    let raft = anew.start(false).await;
    let state = raft.read(|fsm| fsm.authorities().clone());
    let keyring = Keyring::load(&anew.config.pki_dir()).unwrap();
    assert!(keyring.follow(&state).unwrap(), "no key is missing");
    assert_eq!(keyring.signing().pin().to_string(), pins[0]);
    assert_eq!(keyring.to_wire().len(), 2);
    assert!(pins.iter().all(|pin| keyring.trusts(pin.parse().unwrap())));
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_goes_on_with_a_higher_incarnation_and_a_new_controller() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    for n in 1..=20 {
        note(&raft, n).await;
    }
    let path = place.file("a.backup");
    write(Contents::of(&raft, &place.config.pki_dir()), &path).await.unwrap();
    let (index, before) = (raft.read(Fsm::applied), lines(raft.audit()).await);
    note(&raft, 21).await;
    raft.shutdown().await;

    let mut incarnations = Vec::new();
    for _ in 0..2 {
        let anew = Place::empty();
        let restored = restore(&anew.config, &path).await.unwrap();
        assert!(restored.incarnation > 1 && restored.node > 1);
        incarnations.push(restored.incarnation);
        let key = anew.config.pki_dir().join("ca.key");
        assert_eq!(
            std::fs::read(&key).unwrap(),
            std::fs::read(place.config.pki_dir().join("ca.key")).unwrap()
        );
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);

        let raft = anew.start(false).await;
        raft.ensure_linearizable().await.unwrap();
        assert_eq!(raft.incarnation(), restored.incarnation);
        assert!(raft.read(Fsm::applied) > index);
        let voters = raft.status().voters;
        assert_eq!(voters.len(), 1);
        assert_eq!((voters[0].node, voters[0].address.as_str()), (restored.node, "127.0.0.1:7443"));
        note(&raft, 30).await;
        let after = lines(raft.audit()).await;
        is_whole(&after);
        assert_eq!(after[..before.len()], before);
        assert_eq!(after.len(), before.len() + 2, "the new incarnation and the note");
        raft.shutdown().await;
        drop(raft);
        // It starts again from what it wrote, and takes a backup itself.
        let raft = anew.start(false).await;
        assert_eq!(lines(raft.audit()).await, after);
        let again = anew.file("again.backup");
        write(Contents::of(&raft, &anew.config.pki_dir()), &again).await.unwrap();
        assert_eq!(check(&again).unwrap().manifest.incarnation, restored.incarnation);
        raft.shutdown().await;
        // The next restore of the same backup must not come out with the same number, which is a second's.
        let second = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let taken = second();
        while second() == taken {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(incarnations[0] < incarnations[1], "{incarnations:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_holds_the_records_that_were_kept_and_a_restore_continues_them() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    for n in 1..=20 {
        note(&raft, n).await;
    }
    prune(&raft, 15).await;
    note(&raft, 21).await;
    let kept = lines(raft.audit()).await;
    assert_eq!(kept.len(), 8, "records 16 to 23");
    let path = place.file("a.backup");
    let written = write(Contents::of(&raft, &place.config.pki_dir()), &path).await.unwrap();
    assert_eq!((written.manifest.audit_pruned, written.manifest.audit_records_here()), (15, 8));
    let checked = check(&path).unwrap();
    assert_eq!(checked.fsm.audit_pruned().map(|pruned| pruned.through), Some(15));
    raft.shutdown().await;
    drop(raft);
    let read_out = place.file("b.backup");
    read_out_to(&place.config, &read_out).await.unwrap();
    assert_eq!(check(&read_out).unwrap().manifest.audit_records_here(), 8);

    for path in [path, read_out] {
        let anew = Place::empty();
        restore(&anew.config, &path).await.unwrap();
        let raft = anew.start(false).await;
        raft.ensure_linearizable().await.unwrap();
        let after = lines(raft.audit()).await;
        assert_eq!(after[..kept.len()], kept);
        is_whole(&after);
        let again = anew.file("again.backup");
        write(Contents::of(&raft, &anew.config.pki_dir()), &again).await.unwrap();
        check(&again).unwrap();
        raft.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prune_in_the_middle_of_a_backup_fails_it_and_says_why() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    for n in 1..=20 {
        note(&raft, n).await;
    }
    let contents = Contents::of(&raft, &place.config.pki_dir());
    prune(&raft, 15).await;
    let failed = write(contents, &place.file("a.backup")).await.unwrap_err();
    assert!(format!("{failed:#}").contains("records were pruned while"), "{failed:#}");
    raft.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_store_is_read_out_with_all_its_log_and_left_as_it_was() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    for n in 1..=7 {
        note(&raft, n).await;
    }
    let (index, records) = (raft.read(Fsm::applied), lines(raft.audit()).await);
    let path = place.file("a.backup");
    let busy = read_out_to(&place.config, &path).await.unwrap_err();
    assert!(format!("{busy:#}").contains("used by another process"), "{busy:#}");
    raft.shutdown().await;
    drop(raft);
    let before = files(&place.config.data_dir.join("raft"));
    read_out_to(&place.config, &path).await.unwrap();
    let checked = check(&path).unwrap();
    assert_eq!(
        (checked.fsm.applied(), checked.manifest.audit_records),
        (index, records.len() as u64)
    );
    assert_eq!(files(&place.config.data_dir.join("raft")), before);
    // And it still starts.
    place.start(false).await.shutdown().await;
}

/// The log and the snapshot, byte by byte. The audit database is left out: opening it may change its layout.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name != "audit.redb").then(|| (name, std::fs::read(path).unwrap()))
    };
    std::fs::read_dir(dir).unwrap().filter_map(file).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_was_cut_short_is_begun_anew_and_a_folder_in_use_is_refused() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    note(&raft, 1).await;
    let path = place.file("a.backup");
    write(Contents::of(&raft, &place.config.pki_dir()), &path).await.unwrap();
    raft.shutdown().await;

    let refused = restore(&place.config, &path).await.unwrap_err();
    assert!(format!("{refused:#}").contains("holds a controller"), "{refused:#}");
    // Without the identity it is still somebody's store.
    std::fs::remove_file(ControllerIdentity::path(&place.config.data_dir)).unwrap();
    restore(&place.config, &path).await.unwrap_err();

    let anew = Place::empty();
    restore(&anew.config, &path).await.unwrap();
    let data = &anew.config.data_dir;
    // As a crash right before the end would leave it.
    std::fs::remove_file(ControllerIdentity::path(data)).unwrap();
    std::fs::write(data.join("restore.unfinished"), "").unwrap();
    std::fs::write(data.join("raft/log-0000000000000009.seg"), "half").unwrap();
    restore(&anew.config, &path).await.unwrap();
    assert!(!data.join("restore.unfinished").exists());
    anew.start(false).await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_backup_changes_nothing() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    let path = place.file("a.backup");
    write(Contents::of(&raft, &place.config.pki_dir()), &path).await.unwrap();
    raft.shutdown().await;
    let bytes = std::fs::read(&path).unwrap();
    let damaged = place.file("damaged");
    for at in (0..bytes.len()).step_by(bytes.len() / 40) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x20;
        std::fs::write(&damaged, &changed).unwrap();
        let anew = Place::empty();
        restore(&anew.config, &damaged).await.unwrap_err();
        assert!(!anew.config.data_dir.exists(), "byte {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_write_leaves_nothing_and_nights_are_kept_by_count() {
    let place = Place::with_authority();
    let raft = place.start(true).await;
    let nowhere = place.file("no/such/folder/a.backup");
    write(Contents::of(&raft, &place.config.pki_dir()), &nowhere).await.unwrap_err();
    // The authority is not there: what was begun is removed again.
    let path = place.file("a.backup");
    write(Contents::of(&raft, &place.file("nothing")), &path).await.unwrap_err();
    assert!(!path.exists() && !place.file("a.backup.partial").exists());

    let keep = Keep { dir: place.file("nights"), count: 2, hour: 3 };
    let day = 86_400_000;
    for night in 0..4 {
        let cut_short = keep.dir.join("nightly-2026-11-21T160003Z.backup.partial");
        if night > 0 {
            std::fs::write(cut_short, "by a full disk").unwrap();
        }
        let now = Timestamp(1_800_000_000_000 + night * day);
        keep.step(&raft, &place.config.pki_dir(), now).await.unwrap();
        keep.step(&raft, &place.config.pki_dir(), now).await.unwrap();
    }
    std::fs::write(keep.dir.join("mine"), "").unwrap();
    let mut names: Vec<_> = std::fs::read_dir(&keep.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    check(&keep.dir.join(&names[2])).unwrap();
    raft.shutdown().await;
}
