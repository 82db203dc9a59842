//! Images of a registry with TLS by an authority of the lab's own, and with a password. Part of the test of `registry.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Result, ensure};
use fleet_tests::lab::Lab;
use fleet_tests::steps::Steps;
use fleet_tests::wait::LATER;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

use crate::archives::{Entry, busybox, tar};
use crate::registry::{Lock, NODE, Registry};

/// What `htpasswd -nbB ada "lab secret"` prints.
const USERS: &str = "ada:$2b$04$s8/VG6hUy8IMRSk48dsamewrkHJSjIdYWqXWvT/2jU5BtnahyUBYC\n";
/// `ada:lab secret` and `ada:another`, as docker writes them down.
const RIGHT: &str = "YWRhOmxhYiBzZWNyZXQ=";
const WRONG: &str = "YWRhOmFub3RoZXI=";

pub(crate) fn pulled_from(lab: &Lab, open: &Registry, steps: &mut Steps) -> Result<()> {
    let folder = lab.folder().join("locked");
    fs::create_dir_all(&folder)?;
    let registry = open.locked(&folder, &lock(&folder)?)?;
    let layers = [tar(&busybox()?), tar(&[Entry::file("etc/marker", b"for few\n")])];
    open.push(lab, "lab/private", "v1", &layers)?;
    let image = format!("{}/lab/private:v1", registry.name);
    let cat = || lab.run(&["run", "--image", &image, "--", "cat", "/etc/marker"]);
    let refused = |why: &str| -> Result<()> {
        let ran = cat()?;
        ran.ends(125)?;
        ensure!(ran.stderr.contains(why), "{ran:?}");
        ensure!(!format!("{ran:?}").contains(RIGHT), "{ran:?}");
        Ok(())
    };
    steps.step("a registry whose authority nobody knows is not spoken to", || {
        refused(&format!("the certificate of registry {} is not trusted", registry.name))
    });
    let credentials = folder.join("config.json");
    steps.step(
        "with its authority, but without credentials, it is said that they are wanted",
        || {
            trust(lab, &registry.name, &folder.join("ca.pem"), &credentials)?;
            allow(&credentials, "elsewhere.example", RIGHT)?;
            refused("to anybody without credentials")
        },
    );
    steps.step("a wrong password is said to be refused", || {
        allow(&credentials, &registry.name, WRONG)?;
        refused("to the user in the node's credentials file")
    });
    steps.step("with credentials its images run, and no log has them", || {
        allow(&credentials, &registry.name, RIGHT)?;
        ensure!(cat()?.ok()? == "for few\n");
        let log = fs::read_to_string(&lab.dev_file()?.process("agent", NODE)?.log)?;
        ensure!(!log.contains(RIGHT) && !log.contains("lab secret"), "the password is in the log");
        Ok(())
    });
    Ok(())
}

/// An authority, and by it a certificate for this machine.
fn lock(folder: &Path) -> Result<Lock> {
    let authority = KeyPair::generate()?;
    let mut of_authority = CertificateParams::default();
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(folder.join("ca.pem"), of_authority.self_signed(&authority)?.pem())?;
    let own = KeyPair::generate()?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?
        .signed_by(&own, &Issuer::new(of_authority, authority))?;
    let lock = Lock {
        certificate: folder.join("server.pem"),
        key: folder.join("server.key"),
        users: folder.join("users"),
    };
    fs::write(&lock.certificate, certificate.pem())?;
    fs::write(&lock.key, own.serialize_pem())?;
    fs::write(&lock.users, USERS)?;
    Ok(lock)
}

/// Has the agent trust that authority for this registry, and look for credentials there.
fn trust(lab: &Lab, registry: &str, authority: &Path, credentials: &Path) -> Result<()> {
    let path = lab.state().join(NODE).join("agent.toml");
    let text = fs::read_to_string(&path)?;
    let text = format!(
        "{text}\n[images.registries.{registry:?}]\nca_file = {authority:?}\n\n\
         [images]\ncredentials_file = {credentials:?}\n"
    );
    fs::write(&path, text)?;
    lab.kill_and_restart("agent", NODE)?;
    lab.node_in(NODE, "ready", LATER)
}

/// Writes what `docker login` would.
fn allow(credentials: &Path, registry: &str, password: &str) -> Result<()> {
    let auths = json!({ "auths": { registry: { "auth": password } } });
    fs::write(credentials, auths.to_string())?;
    Ok(fs::set_permissions(credentials, fs::Permissions::from_mode(0o600))?)
}
