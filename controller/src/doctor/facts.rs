//! Gathers what `judge` judges, from files and by asking the controller that runs, on its socket.
//!
//! Works as any user: what only root and the controller's own user see is an `Err` with that reason.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use fleet_daemon::doctor::Look;
use fleet_daemon::doctor::look;
use fleet_daemon::doctor::machine::{Certificate, Disk, Validity};
use fleet_proto::convert::freshness;
use fleet_proto::transport::{files, identity, unix};
use fleet_proto::v1;
use fleet_proto::v1::fleet_client::FleetClient;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::timeout;
use tonic::Request;

use super::judge::{Backups, Facts, Key, Store};
use crate::backup::newest_in;
use crate::clock::wall;
use crate::config::Config;
use crate::disk::network_file_system_of;
use crate::pki::{AUTHORITY_CERTIFICATE_FILE, SERVER_CERTIFICATE_FILE};

/// How long the folders of the controller may take: they should be on a disk of this machine.
const FILES_LIMIT: Duration = Duration::from_secs(5);
/// How long the controller may take to name the others: it asks each of them how it is.
const MEMBERS_LIMIT: Duration = Duration::from_secs(5);
const NOT_ALLOWED: &str = "only root and the controller's user can see that";

/// Looks at everything.
pub(super) async fn gather(config: &Config) -> Facts {
    let pki = config.pki_dir();
    let own = config.clone();
    let files = look::within(FILES_LIMIT, "the data folder", move || of_files(&own));
    let unanswered = |why: &String| Certificate {
        name: "certificate",
        path: pki.display().to_string(),
        validity: Err(why.clone()),
        renews: true,
        action: "",
    };
    let (made, keys, newest, certificate, authority) = match files {
        Ok(found) => found,
        Err(why) => {
            let (one, other) = (unanswered(&why), unanswered(&why));
            (Err(why.clone()), Err(why.clone()), Err(why), one, other)
        }
    };
    let socket = &config.socket;
    let listens = UnixStream::connect(socket).map(drop);
    let others = match &listens {
        Ok(()) => others(config).await.map(|addresses| look::nameless(&addresses)),
        // No controller listens that could be asked: `listens` reports that.
        Err(_) => Ok(Vec::new()),
    };
    Facts {
        now: wall().0 / 1_000,
        made,
        listens: listens.map_err(|error| format!("{}: {error}", socket.display())),
        others,
        store: Store {
            path: config.data_dir.display().to_string(),
            kind: look::file_system_of(&config.data_dir),
            remote: remote(config),
        },
        keys,
        disks: disks(config),
        backups: Backups {
            path: config.backup_dir.display().to_string(),
            keep: config.backup_keep,
            newest,
        },
        clock: look::clock(),
        mounts: look::network_mounts(),
        certificate,
        authority,
    }
}

/// Where the other controllers are, by the one that runs here.
async fn others(config: &Config) -> Look<Vec<String>> {
    let mut request = Request::new(v1::ListControllersRequest {});
    freshness::allow_stale(&mut request);
    let mut client = FleetClient::new(unix::channel(&config.socket));
    let listed = match timeout(MEMBERS_LIMIT, client.list_controllers(request)).await {
        Ok(Ok(listed)) => listed.into_inner(),
        Ok(Err(status)) => return Err(format!("the controller answers: {}", status.message())),
        Err(_) => {
            return Err(format!(
                "the controller does not answer for {} s",
                MEMBERS_LIMIT.as_secs()
            ));
        }
    };
    let own: Vec<String> = config.advertise.iter().map(ToString::to_string).collect();
    let addresses = listed.items.into_iter().map(|one| one.address);
    Ok(addresses.filter(|address| !own.contains(address)).collect())
}

/// By the decision of the store itself.
fn remote(config: &Config) -> Look<Option<&'static str>> {
    let data = config.data_dir.clone();
    let look = move || network_file_system_of(&data).map_err(|error| may_not(&error, &data));
    look::within(FILES_LIMIT, "the data folder", look).flatten()
}

type OfFiles = (Look<bool>, Look<Vec<Key>>, Look<Option<u64>>, Certificate, Certificate);

fn of_files(config: &Config) -> OfFiles {
    let pki = config.pki_dir();
    let newest = match newest_in(&config.backup_dir) {
        Ok(newest) => Ok(newest),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(may_not(&error, &config.backup_dir)),
    };
    let certificate = Certificate {
        name: "this controller's certificate",
        renews: true,
        action: "it renews it by itself while it runs; its log says why it did not",
        ..of_file(&pki.join(SERVER_CERTIFICATE_FILE))
    };
    let authority = Certificate {
        name: "the fleet's authority",
        renews: false,
        action: "`fleet controller ca rotate`",
        ..of_file(&pki.join(AUTHORITY_CERTIFICATE_FILE))
    };
    (made(&pki), keys(&config.data_dir, &pki), newest, certificate, authority)
}

fn may_not(error: &std::io::Error, path: &Path) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => NOT_ALLOWED.to_owned(),
        _ => format!("{}: {error}", path.display()),
    }
}

fn made(pki: &Path) -> Look<bool> {
    match fs::metadata(pki.join(AUTHORITY_CERTIFICATE_FILE)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(may_not(&error, pki)),
    }
}

/// Every key, and the folder that holds them.
fn keys(data: &Path, pki: &Path) -> Look<Vec<Key>> {
    let wrong = |error: &std::io::Error| may_not(error, pki);
    let owner = fs::metadata(data).map_err(|error| wrong(&error))?.uid();
    let key = |path: &Path| {
        let meta = fs::metadata(path).map_err(|error| wrong(&error))?;
        let path = path.display().to_string();
        Ok::<Key, String>(Key { path, mode: meta.mode(), own: meta.uid() == owner })
    };
    let mut found = vec![key(pki)?];
    for entry in fs::read_dir(pki).map_err(|error| wrong(&error))? {
        let path = entry.map_err(|error| wrong(&error))?.path();
        if path.extension().is_some_and(|ending| ending == "key") {
            found.push(key(&path)?);
        }
    }
    Ok(found)
}

fn of_file(path: &Path) -> Certificate {
    let validity = || -> Look<Validity> {
        fs::metadata(path).map_err(|error| may_not(&error, path))?;
        let pem = files::read_limited(path).map_err(|error| error.to_string())?;
        // The first is the one that signs.
        let der = CertificateDer::from_pem_slice(&pem).map_err(|error| error.to_string())?;
        let (from, until) = identity::validity_of(&der).map_err(|error| error.to_string())?;
        Ok(Validity { from, until })
    };
    let (validity, path) = (validity(), path.display().to_string());
    Certificate { name: "certificate", path, validity, renews: false, action: "" }
}

fn disks(config: &Config) -> Vec<Disk> {
    let mut disks = vec![look::disk("store", &config.data_dir)];
    if !config.backup_dir.starts_with(&config.data_dir) {
        disks.push(look::disk("backups", &config.backup_dir));
    }
    disks
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::pki::Authority;

    #[test]
    fn the_files_of_a_controller_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let pki = data.join("pki");
        assert_eq!(made(&pki), Ok(false));
        Authority::create(&pki, fleet_core::Timestamp(1_000_000_000_000)).unwrap();
        assert_eq!(made(&pki), Ok(true));
        let of = |found: &[Key]| {
            let mut modes: Vec<u32> = found.iter().map(|key| key.mode & 0o777).collect();
            modes.sort_unstable();
            modes
        };
        let found = keys(data, &pki).unwrap();
        assert!(found.iter().all(|key| key.own), "{found:?}");
        assert_eq!(of(&found), [0o600, 0o700]);
        let key = pki.join("ca.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(of(&keys(data, &pki).unwrap()), [0o640, 0o700]);
        let validity = of_file(&pki.join(AUTHORITY_CERTIFICATE_FILE)).validity.unwrap();
        assert!(validity.from <= 1_000_000_000 && validity.until > 1_300_000_000, "{validity:?}");
        assert!(of_file(&key).validity.is_err());
    }
}
