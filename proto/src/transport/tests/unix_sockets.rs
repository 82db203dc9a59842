//! The Unix socket: who connects is what the kernel says.

use std::os::unix::fs::PermissionsExt;

use super::fixture::{service, who_am_i};
use crate::transport::unix::{SocketError, channel};
use crate::transport::{Gate, UnixListener, server};

#[tokio::test]
async fn the_kernel_vouches_for_local_peers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.sock");
    let listener = UnixListener::bind(&path, 0o666).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    let router = server::server_builder(Gate::default()).add_service(service());
    let task = tokio::spawn(router.serve_with_incoming(listener));
    let (who, serial) = who_am_i(channel(&path)).await.unwrap();
    use std::os::unix::fs::MetadataExt;
    let uid = folder.path().metadata().unwrap().uid();
    assert_eq!((who, serial), (format!("uid {uid} on this machine"), String::new()));
    task.abort();
    drop(task.await);
    assert!(!path.exists(), "the socket file goes with the listener");
    assert!(who_am_i(channel(&path)).await.is_err());
}

#[tokio::test]
async fn a_long_path_is_as_good_as_a_short_one() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("x".repeat(100)).join("y".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join("fleet.sock");
    // One that is left over, one that is served, one that is reached, as with a short path.
    let link = folder.path().join("short");
    std::os::unix::fs::symlink(&deep, &link).unwrap();
    drop(std::os::unix::net::UnixListener::bind(link.join("fleet.sock")).unwrap());
    let listener = UnixListener::bind(&path, 0o666).unwrap();
    let second = UnixListener::bind(&path, 0o600).unwrap_err();
    assert!(matches!(second, SocketError::InUse { .. }), "{second}");
    let router = server::server_builder(Gate::default()).add_service(service());
    let task = tokio::spawn(router.serve_with_incoming(listener));
    who_am_i(channel(&path)).await.unwrap();
    task.abort();
    drop(task.await);
    assert!(!path.exists());
    assert!(who_am_i(channel(&path)).await.is_err());
    assert!(who_am_i(channel(&deep.join("none/fleet.sock"))).await.is_err());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let first = UnixListener::bind(&path, 0o600).unwrap();
    let second = UnixListener::bind(&path, 0o600).unwrap_err();
    assert!(matches!(second, SocketError::InUse { .. }), "{second}");
    std::fs::remove_file(&path).unwrap();
    let third = UnixListener::bind(&path, 0o600).unwrap();
    drop(first);
    assert!(path.exists(), "the socket of another listener stays");
    drop(third);
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    let refused = UnixListener::bind(&path, 0o600).unwrap_err();
    assert!(matches!(refused, SocketError::NotASocket { .. }), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    let long = folder.path().join("x".repeat(120));
    assert!(matches!(UnixListener::bind(&long, 0o600), Err(SocketError::TooLong { .. })));
    let nowhere = folder.path().join("none/fleet.sock");
    let error = UnixListener::bind(&nowhere, 0o600).unwrap_err();
    assert!(error.to_string().contains("none/fleet.sock"), "{error}");
}
