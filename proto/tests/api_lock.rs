//! The API only grows: every message, field, enum value and call of `fleet.v1` that was ever
//! released stays what it was. `proto/api.lock` holds one line for each.

use std::collections::BTreeSet;
use std::path::Path;

use prost_types::{DescriptorProto, FileDescriptorSet};

const LOCK: &str = "api.lock";

fn descriptors() -> FileDescriptorSet {
    let folder = Path::new("proto/fleet/v1");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of .proto files")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "proto"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no .proto file found in {}", folder.display());
    protox::compile(&files, ["proto"]).expect("the .proto files compile")
}

fn message(prefix: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{prefix}.{}", message.name());
    lines.insert(format!("message {name}"));
    for field in &message.field {
        let kind = match field.type_name() {
            "" => format!("{:?}", field.r#type()),
            name => name.trim_start_matches('.').to_owned(),
        };
        let label = format!("{:?}", field.label());
        let presence = if field.proto3_optional() { " optional" } else { "" };
        lines.insert(format!(
            "field {name}.{} = {} {label} {kind}{presence}",
            field.name(),
            field.number()
        ));
    }
    for nested in &message.nested_type {
        self::message(&name, nested, lines);
    }
}

fn current() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in descriptors().file {
        let package = file.package().to_owned();
        for m in &file.message_type {
            message(&package, m, &mut lines);
        }
        for service in &file.service {
            for call in &service.method {
                let stream = |on: bool| if on { "stream " } else { "" };
                lines.insert(format!(
                    "call {package}.{}.{}({}{}) -> {}{}",
                    service.name(),
                    call.name(),
                    stream(call.client_streaming()),
                    call.input_type().trim_start_matches('.'),
                    stream(call.server_streaming()),
                    call.output_type().trim_start_matches('.')
                ));
            }
        }
    }
    lines
}

#[test]
fn nothing_released_is_changed_or_taken_away() {
    let now = current();
    if std::env::var_os("UPDATE_API_LOCK").is_some() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(LOCK, text).expect("write the lock");
        return;
    }
    let locked = std::fs::read_to_string(LOCK).expect("read proto/api.lock");
    let locked: BTreeSet<String> = locked.lines().map(str::to_owned).collect();
    let gone: Vec<_> = locked.difference(&now).collect();
    assert!(
        gone.is_empty(),
        "changed or taken away, which breaks older agents and CLIs: {gone:#?}"
    );
    let new: Vec<_> = now.difference(&locked).collect();
    assert!(
        new.is_empty(),
        "new; accept with UPDATE_API_LOCK=1 cargo test -p fleet-proto --test api_lock: {new:#?}"
    );
}
