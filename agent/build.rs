//! Links `fleet-shim` statically: there is one for each job, and it starts faster. It looks up no names (no
//! NSS), so glibc may be static. `fleet-init` has a start of its own and, as the first process in containers
//! whose images may have another C library or none, needs no library at all.
//!
//! rustc can only switch this per target, not per binary. Its link line names the shared libraries;
//! linker scripts of the same names, found first, send each of them to the static archive.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // No C library's start, and addresses that need nobody to put them right at run time.
    for argument in ["-nostartfiles", "-static", "-no-pie"] {
        println!("cargo:rustc-link-arg-bin=fleet-init={argument}");
    }
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
    for program in ["fleet-shim", "fleet-init"] {
        println!("cargo:rustc-link-arg-bin={program}=-L{}", dir.display());
    }
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
