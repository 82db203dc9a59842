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
    let Some(archive) = static_archive("libc.a") else {
        println!("cargo:warning=no static C library found: fleet-shim is linked dynamically");
        return;
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let dir = out.join("static-libs");
    fs::create_dir_all(&dir).expect("OUT_DIR is writable");
    // glibc has all of it in one archive from 2.34 on, and these are empty there.
    let others = ["libpthread.a", "librt.a", "libdl.a", "libutil.a"].map(static_archive);
    let archives: Vec<String> =
        others.iter().flatten().chain([&archive]).map(|path| path.display().to_string()).collect();
    for name in ["gcc_s", "c", "m", "rt", "pthread", "util", "dl"] {
        let script = format!("GROUP({} -lgcc_eh -lgcc)\n", archives.join(" "));
        fs::write(dir.join(format!("lib{name}.so")), script).expect("OUT_DIR is writable");
    }
    println!("cargo:rustc-link-arg-bin=fleet-shim=-static-pie");
    // Where threads are an archive of their own, what unwinds a panic asks for these weakly: without them it would
    // call address 0.
    for symbol in ["pthread_once", "pthread_mutex_lock", "pthread_mutex_unlock"] {
        println!("cargo:rustc-link-arg-bin=fleet-shim=-Wl,-u,{symbol}");
    }
    for program in ["fleet-shim", "fleet-init"] {
        println!("cargo:rustc-link-arg-bin={program}=-L{}", dir.display());
    }
}

/// Where the C compiler keeps such a file; `None` when it has none or the target is not Linux with glibc.
fn static_archive(name: &str) -> Option<PathBuf> {
    if env::var("CARGO_CFG_TARGET_ENV").ok()? != "gnu" {
        return None;
    }
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let answer = Command::new(compiler).arg(format!("-print-file-name={name}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8(answer.stdout).ok()?.trim());
    path.is_absolute().then_some(path).filter(|path| path.exists())
}
