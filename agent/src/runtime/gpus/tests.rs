//! What images get for their GPUs, from tables of what a node may have.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fleet_core::name::GpuUuid;

use super::cdi::{Format, parse};
use super::host::{Described, Kind};
use super::*;
use crate::config::DriverPlaces;

const UUID: &str = "GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5";

/// As `nvidia-ctk cdi generate` writes it (1.17), shortened: two cards, of which NVML's first is the kernel's second.
const GENERATED: &str = r#"
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-modeset
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  - NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    options: [ro, nosuid, nodev, bind]
  - containerPath: /tmp/nvidia-mps
    hostPath: /tmp/nvidia-mps
    options: [ro, nosuid, nodev, bind]
  - containerPath: /run/nvidia-persistenced/socket
    hostPath: /run/nvidia-persistenced/socket
    options: [ro, nosuid, nodev, bind]
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
    - path: /dev/dri/card1
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "1"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
  name: all
kind: nvidia.com/gpu
"#;

fn gpu(uuid: &str, minor: u32) -> Card {
    Card { uuid: GpuUuid::parse(uuid).unwrap(), minor }
}

/// A node with these descriptions (folder, text), the driver of that time, its files and the hook.
fn node(descriptions: &[(usize, &str)]) -> Host {
    let mut host = Host { module: Some("550.54.15".to_owned()), ..Host::default() };
    for (at, (folder, text)) in descriptions.iter().enumerate() {
        let spec = parse(text, Format::Yaml).unwrap().unwrap();
        let path = PathBuf::from(format!("/cdi{folder}/{at}.yaml"));
        host.described.push(Described { path, folder: *folder, spec });
    }
    let libs = "/usr/lib/x86_64-linux-gnu";
    for (path, kind) in [
        (format!("{libs}/libcuda.so.550.54.15"), Kind::File),
        ("/tmp/nvidia-mps".to_owned(), Kind::Folder),
        ("/run/nvidia-persistenced/socket".to_owned(), Kind::Other),
        ("/etc/anything".to_owned(), Kind::File),
    ] {
        host.kinds.insert(path.into(), kind);
    }
    let names = ["libcuda.so.550.54.15", "libcuda.so.1"].map(str::to_owned).to_vec();
    host.names.insert(format!("{libs}/libcuda.so.550.54.15").into(), names);
    for file in ["libcuda.so.550.54.15", "libnvidia-nvvm.so.550.54.15", "libcuda.so.535.1.2"] {
        host.libraries.push(PathBuf::from(libs).join(file));
    }
    host.tools.push(("nvidia-smi".to_owned(), "/usr/bin/nvidia-smi".into()));
    host
}

fn one(host: &Host, gpu: Card) -> Inside {
    inside(host, &[gpu], Some(Path::new("/usr/lib64")))
}

fn destinations(inside: &Inside) -> Vec<&str> {
    inside.binds.iter().map(|bind| bind.destination.to_str().unwrap()).collect()
}

#[test]
fn a_generated_description_is_used_for_what_is_the_drivers() {
    let inside = one(&node(&[(0, GENERATED)]), gpu(UUID, 1));
    // Its own place, all names in the folder of this image's loader, what the node has besides, and the hook's link.
    assert_eq!(
        destinations(&inside),
        [
            "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
            "/usr/lib64/libcuda.so.550.54.15",
            "/usr/lib64/libcuda.so.1",
            "/usr/lib64/libcuda.so",
            "/usr/bin/nvidia-smi",
            "/usr/lib/x86_64-linux-gnu/libcuda.so",
        ]
    );
    let cuda = |bind: &&Bind| bind.source.ends_with("libcuda.so.550.54.15");
    assert_eq!(inside.binds.iter().filter(cuda).count(), 5, "{inside:?}");
    let env = ("NVIDIA_CTK_LIBCUDA_DIR".to_owned(), "/usr/lib/x86_64-linux-gnu".to_owned());
    assert_eq!(inside.env, [env], "which GPUs are visible is fleet's to say");
    assert_eq!(inside.files, [Path::new("/cdi0/0.yaml")]);
    assert_eq!(inside.notes.len(), 2, "MPS and persistenced are services: {:?}", inside.notes);
    assert_eq!(super::inside(&node(&[(0, GENERATED)]), &[], None), Inside::default());
}

/// Only the device nodes say which GPU a device is; `used` says whether it may be used for GPU 1.
#[test]
fn a_device_is_a_gpu_by_its_nodes_alone() {
    let device = |name: &str, nodes: &[&str]| {
        let nodes: Vec<String> = nodes.iter().map(|node| format!("{{path: {node}}}")).collect();
        format!(
            "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: '{name}'\n  containerEdits:\n    \
             additionalGids: [0, 44]\n    deviceNodes: [{}]\n",
            nodes.join(", ")
        )
    };
    for (name, nodes, used) in [
        (UUID, ["/dev/nvidia1"].as_slice(), true),
        ("7", &["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"], true),
        ("1", &["/dev/nvidia0"], false),
        (UUID, &["/dev/nvidia0"], false),
        ("all", &["/dev/nvidia0", "/dev/nvidia1"], false),
        (UUID, &["/dev/nvidia0", "/dev/nvidia1"], false),
        (UUID, &["/dev/x, hostPath: /dev/nvidia0", "/dev/nvidia1"], false),
        (UUID, &["/dev/x, major: 195, minor: 0", "/dev/nvidia1"], false),
        ("1:0", &["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap3"], false),
        (UUID, &["/dev/nvidiactl"], false),
    ] {
        let text = device(name, nodes);
        let inside = one(&node(&[(0, &text)]), gpu(UUID, 1));
        assert_eq!(!inside.files.is_empty(), used, "{name} {nodes:?} {inside:?}");
        assert_eq!(inside.gids, if used { vec![44] } else { vec![] }, "{name} {nodes:?}");
        assert!(destinations(&inside).contains(&"/usr/lib64/libcuda.so.1"), "{name} {nodes:?}");
    }
    let common = GENERATED.replacen("/dev/nvidiactl", "/dev/nvidia0", 1);
    let inside = one(&node(&[(0, &common)]), gpu(UUID, 1));
    assert!(inside.files.is_empty() && inside.notes[0].contains("with any device"), "{inside:?}");
    let inside = super::inside(&node(&[(0, GENERATED)]), &[gpu(UUID, 1), gpu("GPU-2", 2)], None);
    assert!(inside.files.is_empty(), "all of a job's GPUs, or none: {inside:?}");
}

#[test]
fn the_later_folder_counts_and_two_of_one_name_count_for_nothing() {
    let of = |env: &str| {
        format!(
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  env: [{env}]\ndevices:\n- name: {UUID}\n  \
             containerEdits:\n    deviceNodes: [{{path: /dev/nvidia1}}]\n"
        )
    };
    let (a, b) = (of("X=a"), of("X=b"));
    let inside = one(&node(&[(0, &a), (1, &b)]), gpu(UUID, 1));
    assert_eq!(inside.env, [("X".to_owned(), "b".to_owned())]);
    let inside = one(&node(&[(0, &a), (0, &b)]), gpu(UUID, 1));
    assert!(inside.env.is_empty() && inside.notes[0].contains("both describe"), "{inside:?}");
}

#[test]
fn what_a_description_may_not_do_is_left_out() {
    let text = |edits: &str| {
        format!(
            "cdiVersion: 1.0.0\nkind: nvidia.com/gpu\ndevices:\n- name: {UUID}\n  containerEdits:\n    \
             deviceNodes: [{{path: /dev/nvidia1}}]\n    {edits}\n"
        )
    };
    let link = |pair: &str| {
        let args = format!("[nvidia-ctk, hook, create-symlinks, --link, '{pair}']");
        format!("hooks: [{{hookName: createContainer, path: /usr/bin/nvidia-ctk, args: {args}}}]")
    };
    for (edits, why) in [
        ("mounts: [{hostPath: /etc/anything, containerPath: /dev/nvidia0}]", "nothing may be"),
        ("mounts: [{hostPath: /etc/anything, containerPath: /proc/x}]", "nothing may be"),
        ("mounts: [{hostPath: /etc/anything, containerPath: /}]", "absolute"),
        ("mounts: [{hostPath: /etc/../x, containerPath: /x}]", "absolute"),
        ("mounts: [{hostPath: tmpfs, containerPath: /x, type: tmpfs}]", "of type"),
        ("mounts: [{hostPath: /gone, containerPath: /x}]", "not there"),
        ("hooks: [{hookName: createContainer, path: /usr/bin/anything}]", "runs none"),
        ("hooks: [{hookName: createRuntime, path: /gone, args: [gone, update]}]", "runs none"),
        (&link("/gone.so.1::/usr/lib/x.so"), "/gone.so.1 is no file of the driver's"),
        ("env: [NAME]", "no value"),
    ] {
        let inside = one(&node(&[(0, &text(edits))]), gpu(UUID, 1));
        assert!(inside.notes.iter().any(|note| note.contains(why)), "{edits}: {inside:?}");
        assert!(inside.env.is_empty(), "{edits}: {inside:?}");
        assert_eq!(inside.binds, one(&node(&[]), gpu(UUID, 1)).binds, "{edits}");
    }
    for link in [
        link("libcuda.so.1::/dev/nvidia0"),
        link("libcuda.so.1::/usr/../proc/x"),
        link("libcuda.so.1::x.so"),
    ] {
        let inside = one(&node(&[(0, &text(&link))]), gpu(UUID, 1));
        assert_eq!(inside.binds, one(&node(&[]), gpu(UUID, 1)).binds, "{link}");
    }
    let env = text("env: [FLEET_JOB_ID=x, CUDA_VISIBLE_DEVICES=all]");
    assert!(one(&node(&[(0, &env)]), gpu(UUID, 1)).env.is_empty());
}

#[test]
fn a_description_of_another_driver_is_not_used() {
    let mut host = node(&[(0, GENERATED)]);
    host.module = Some("560.1.2".to_owned());
    assert!(host.troubles()[0].1.contains("driver 550.54.15"), "{:?}", host.troubles());
    host.module = None;
    assert_eq!(host.troubles(), []);
    host.kinds.remove(Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"));
    assert!(host.troubles()[0].1.contains("is not there"), "{:?}", host.troubles());
}

#[test]
fn without_a_description_the_drivers_files_are_found() {
    let mut host = node(&[]);
    let inside = one(&host, gpu(UUID, 1));
    assert_eq!(
        destinations(&inside),
        [
            "/usr/lib64/libcuda.so",
            "/usr/lib64/libcuda.so.1",
            "/usr/lib64/libcuda.so.550.54.15",
            "/usr/lib64/libnvidia-nvvm.so.4",
            "/usr/lib64/libnvidia-nvvm.so.550.54.15",
            "/usr/bin/nvidia-smi",
        ]
    );
    assert!(inside.binds[1].source.ends_with("libcuda.so.550.54.15"), "{inside:?}");
    // The libraries were exchanged under the driver, or nobody knows which it is.
    host.module = Some("560.1.2".to_owned());
    assert!(host.lacks().unwrap().contains("libcuda.so.560.1.2"));
    host.module = None;
    assert!(host.lacks().unwrap().contains("535.1.2, 550.54.15"));
    host.libraries.pop();
    assert_eq!(host.lacks(), None);
    host.libraries.clear();
    assert!(host.lacks().unwrap().contains("no libraries"));
    let inside = super::inside(&node(&[]), &[gpu(UUID, 1)], None);
    assert!(inside.binds.is_empty() && inside.notes[0].contains("no C library"), "{inside:?}");
}

#[test]
fn files_are_read_strictly_and_those_of_others_not_at_all() {
    let json = format!(
        r#"{{"cdiVersion":"0.3.0","kind":"nvidia.com/gpu","devices":[{{"name":"{UUID}"}}]}}"#
    );
    assert_eq!(parse(&json, Format::Json).unwrap().unwrap().devices.len(), 1);
    let other = r#"{"cdiVersion":"9.9.9","kind":"intel.com/fpga","what":[1]}"#;
    assert_eq!(parse(other, Format::Json), Ok(None));
    for (text, why) in [
        (json.replace("0.3.0", "0.2.0"), "cdiVersion"),
        (json.replace("\"name\"", "\"nom\""), "nom"),
        (json.replace("\"devices\"", "\"extra\":1,\"devices\""), "extra"),
        (json[..json.len() - 2].to_owned(), "EOF"),
        (String::new(), "EOF"),
        (json.replace(&format!("{{\"name\":\"{UUID}\"}}"), ""), "none"),
        (json.replace("}]", &format!("}},{{\"name\":\"{UUID}\"}}]")), "twice"),
    ] {
        let error = parse(&text, Format::Json).unwrap_err();
        assert!(error.contains(why) && !error.contains('\n'), "{text}: {error}");
    }
    for text in ["", "kind: [", "kind: nvidia.com/gpu\nkind: x", &format!("{GENERATED}extra: 1\n")]
    {
        let error = parse(text, Format::Yaml).unwrap_err();
        assert!(!error.contains('\n') && !error.is_empty(), "{text}: {error}");
    }
    // A text that grows when it is read.
    let bomb: String = (1..40).map(|n| format!("a{n}: &a{n} [*a{}, *a{0}]\n", n - 1)).collect();
    parse(&format!("kind: nvidia.com/gpu\na0: &a0 [x]\n{bomb}"), Format::Yaml).unwrap_err();
}

#[test]
fn a_broken_file_hides_no_other_and_is_named() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root's descriptions are read, so only root can test it");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (cdi, libs) = (dir.path().join("cdi"), dir.path().join("libs"));
    for folder in [&cdi, &libs] {
        fs::create_dir(folder).unwrap();
    }
    let generated = GENERATED.replace("/usr/lib/x86_64-linux-gnu", &libs.display().to_string());
    fs::write(cdi.join("nvidia.yaml"), &generated).unwrap();
    fs::write(cdi.join("broken.json"), "{").unwrap();
    fs::write(cdi.join("writable.yaml"), &generated).unwrap();
    fs::set_permissions(cdi.join("writable.yaml"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::write(cdi.join("notes.txt"), "no description").unwrap();
    fs::write(libs.join("libcuda.so.550.54.15"), "").unwrap();
    fs::write(libs.join("libcuda.so.550.54.16"), b"\x7fELF\x01 of 32 bits").unwrap();
    fs::write(libs.join("libcuda.so.notes"), "").unwrap();
    std::os::unix::fs::symlink("libcuda.so.550.54.15", libs.join("libcuda.so.7")).unwrap();
    std::os::unix::fs::symlink("libcuda.so.550.54.16", libs.join("libcuda.so.8")).unwrap();
    let places = DriverPlaces {
        cdi_dirs: vec![dir.path().join("none"), cdi.clone()],
        library_dirs: vec![libs.clone(), dir.path().join("none")],
        tool_dirs: Vec::new(),
        module_version: dir.path().join("none"),
    };
    let host = Host::look(&places);
    assert_eq!(host.described.len(), 1, "{host:?}");
    let broken: Vec<_> = host.broken.iter().map(|(path, _)| path.file_name().unwrap()).collect();
    assert_eq!(broken, ["broken.json", "writable.yaml"]);
    assert_eq!(host.troubles(), []);
    assert_eq!(host.lacks(), None);
    assert_eq!(host.libraries.len(), 1, "{host:?}");
    let inside = one(&host, gpu(UUID, 1));
    assert_eq!(inside.files, [cdi.join("nvidia.yaml")]);
    let found = destinations(&inside);
    assert!(found.contains(&"/usr/lib64/libcuda.so.7"), "a name that the node has: {found:?}");
    assert!(!found.contains(&"/usr/lib64/libcuda.so.8"), "{found:?}");
}

#[test]
fn a_script_in_place_of_a_tool_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    for folder in [&first, &second] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(first.join("nvidia-smi"), "#!/bin/sh\nexec /elsewhere/nvidia-smi").unwrap();
    fs::write(second.join("nvidia-smi"), b"\x7fELF\x02 of 64 bits").unwrap();
    fs::create_dir(second.join("nvidia-debugdump")).unwrap();
    let places = DriverPlaces {
        cdi_dirs: Vec::new(),
        library_dirs: Vec::new(),
        tool_dirs: vec![first, second.clone()],
        module_version: dir.path().join("none"),
    };
    let program = fs::canonicalize(second.join("nvidia-smi")).unwrap();
    assert_eq!(Host::look(&places).tools, [("nvidia-smi".to_owned(), program)]);
}

#[test]
fn the_images_own_library_folder_is_found_and_no_other_ones() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    assert_eq!(image_library_dir(root), None);
    // Its link leads to the node's own, were it followed there.
    fs::create_dir_all(root.join("usr")).unwrap();
    std::os::unix::fs::symlink("/usr/lib", root.join("lib")).unwrap();
    assert_eq!(image_library_dir(root), None);
    let multiarch = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    for folder in ["usr/lib", "usr/lib64", &multiarch] {
        fs::create_dir_all(root.join(folder)).unwrap();
        fs::write(root.join(folder).join("libc.so.6"), "").unwrap();
        assert_eq!(image_library_dir(root), Some(Path::new("/").join(folder)));
    }
}

/// Files of `/etc/cdi` are root's, but made by other programs.
#[test]
fn hostile_descriptions() {
    fleet_hostile_bytes::throw_text_at(&[GENERATED], |text| {
        let json = parse(text, Format::Json).is_ok();
        parse(text, Format::Yaml).is_ok() | json
    });
}
