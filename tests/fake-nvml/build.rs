//! Link arguments of the fake library: NVML's soname, and never unloaded, because nvml-wrapper calls
//! dlclose while threads may still wait in it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
