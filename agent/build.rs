//! Links `fleet-shim` statically: it is also the init process inside containers, whose images may
//! have another C library or none. The shim looks up no names (no NSS), so glibc may be static.
//!
//! rustc can only switch this per target, not per binary. Its link line names the shared libraries;
//! linker scripts of the same names, found first, send each of them to the static archive.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(archive) = static_libc() else {
        println!("cargo:warning=no static C library found: fleet-shim is linked dynamically");
        return;
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let dir = out.join("static-libs");
    fs::create_dir_all(&dir).expect("OUT_DIR is writable");
    for name in ["gcc_s", "c", "m", "rt", "pthread", "util", "dl"] {
        let script = format!("GROUP({} -lgcc_eh -lgcc)\n", archive.display());
        fs::write(dir.join(format!("lib{name}.so")), script).expect("OUT_DIR is writable");
    }
    println!("cargo:rustc-link-arg-bin=fleet-shim=-static-pie");
    println!("cargo:rustc-link-arg-bin=fleet-shim=-L{}", dir.display());
}

/// Where the C compiler keeps `libc.a`; `None` when it has none or the target is not Linux with glibc.
fn static_libc() -> Option<PathBuf> {
    if env::var("CARGO_CFG_TARGET_ENV").ok()? != "gnu" {
        return None;
    }
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let answer = Command::new(compiler).arg("-print-file-name=libc.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(answer.stdout).ok()?.trim());
    path.is_absolute().then_some(path).filter(|path| path.exists())
}
