//! Compiles every file under `proto/` with protox, so that no system protoc is needed. Besides the messages and services
//! it writes for each message that a method of `fleet.v1.Fleet` takes whether it has a `RequestMeta` (`src/requests.rs`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use prost_types::{FieldDescriptorProto, FileDescriptorSet};

/// Messages that carry a secret: their `Debug` is written by hand (`src/transport/secret.rs`).
const SECRET_MESSAGES: [&str; 5] = [
    "fleet.v1.JoinRequest",
    "fleet.v1.JoinControllerRequest",
    "fleet.v1.AuthorityKey",
    "fleet.v1.LoginCode",
    "fleet.v1.NewFeed",
];

/// Changes that are carried out again when they are asked for again with the same id: tokens, which are shown once and not
/// kept, and what goes by the moment.
const NOT_REPEATABLE: [&str; 7] = [
    "CreateJoinTokenRequest",
    "CreateControllerTokenRequest",
    "CreateLoginCodeRequest",
    "CreateFeedRequest",
    "ResetClockRequest",
    "RotateAuthorityRequest",
    "TransferLeadershipRequest",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from("proto");
    println!("cargo::rerun-if-changed=proto");
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let descriptors = protox::compile(&files, [&root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("requests.rs"), requests(&descriptors))?;
    tonic_prost_build::configure().skip_debug(SECRET_MESSAGES).compile_fds(descriptors)?;
    Ok(())
}

/// An `ApiRequest` for each message that a method of the users' service takes.
fn requests(descriptors: &FileDescriptorSet) -> String {
    let messages = descriptors.file.iter().flat_map(|file| &file.message_type);
    let services = descriptors.file.iter().flat_map(|file| &file.service);
    let methods = services.filter(|service| service.name() == "Fleet").flat_map(|s| &s.method);
    let taken: BTreeSet<&str> =
        methods.filter_map(|method| method.input_type().strip_prefix(".fleet.v1.")).collect();
    let taken = messages.filter(|message| taken.contains(message.name()));
    let written = taken.map(|message| {
        let meta = |field: &FieldDescriptorProto| field.type_name() == ".fleet.v1.RequestMeta";
        let meta = match message.field.iter().find(|field| meta(field)) {
            Some(field) => format!("self.{}.as_ref()", field.name()),
            None => "None".to_owned(),
        };
        let name = message.name();
        let tries = message.field.iter().any(|field| field.name() == "dry_run");
        let dry_run = if tries { "self.dry_run" } else { "false" };
        let repeatable = !NOT_REPEATABLE.contains(&name);
        format!(
            "impl ApiRequest for crate::v1::{name} {{\n    fn meta(&self) -> Option<&RequestMeta> {{ {meta} }}\n    \
             fn is_dry_run(&self) -> bool {{ {dry_run} }}\n    \
             fn is_repeatable(&self) -> bool {{ {repeatable} }}\n}}\n"
        )
    });
    written.collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
