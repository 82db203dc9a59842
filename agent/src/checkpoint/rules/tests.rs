//! Which directories each rule calls complete.
#![allow(clippy::unwrap_used)]

use super::super::tree::{Entry, Tree};
use super::*;

fn tree(names: &[&str]) -> Tree {
    let mut tree = Tree::default();
    for name in names {
        let name = (*name).to_owned();
        tree.entries.push(Entry { name, size: 1, mtime_ns: 1, dev: 1, ino: 1 });
    }
    tree.entries.sort_by(|a, b| a.name.cmp(&b.name));
    tree
}

fn judged(path: &str, names: &[&str], renamed: bool) -> Option<String> {
    let tree = tree(names);
    let of = Candidate { path, tree: &tree, renamed, named: true };
    judge(&RuleChoice::Auto, of).map(|rule| rule.to_string())
}

#[test]
fn the_outer_writer_wins() {
    let hf = ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"];
    for (path, names, renamed, expected) in [
        ("checkpoint-5", &hf[..], false, Some("hf")),
        ("checkpoint-5", &hf[..3], false, None),
        // FSDP and DeepSpeed put their own inside.
        (
            "checkpoint-5",
            &[
                "pytorch_model_fsdp_0/.metadata",
                "pytorch_model_fsdp_0/__0_0.distcp",
                "trainer_state.json",
            ],
            false,
            Some("hf"),
        ),
        ("checkpoint-5", &["global_step5/mp_rank_00_model_states.pt", "latest"], false, None),
        ("checkpoint-5", &["model.bin", "rng_state_0.pth", "trainer_state.json"], false, None),
        (
            "checkpoint-5",
            &["model.bin", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"],
            false,
            Some("hf"),
        ),
        ("step-1", &["__0_0.distcp", ".metadata"], false, Some("dcp")),
        ("step-1", &["__0_0.distcp", ".metadata.tmp"], false, None),
        ("epoch=1.ckpt", &["__0_0.distcp", ".metadata", "meta.pt"], false, Some("lightning")),
        ("7", &["_CHECKPOINT_METADATA", "default/manifest.ocdbt"], true, Some("orbax")),
        ("7.orbax-checkpoint-tmp", &["_CHECKPOINT_METADATA", "default/x"], false, None),
        ("acc-1", &["model.safetensors", "random_states_0.pkl"], false, Some("accelerate")),
        ("acc-1", &["random_states_0.pkl"], false, None),
        ("step-3", &["weights"], true, Some("renamed-dir")),
        ("step-3", &["weights"], false, None),
        ("export", &["config.json", "model.safetensors"], false, None),
    ] {
        let found = judged(path, names, renamed);
        assert_eq!(found.as_deref(), expected, "{path} {names:?} renamed: {renamed}");
    }
}

#[test]
fn a_marker_of_the_users_own() {
    let tree = tree(&["weights", "_SUCCESS"]);
    let of = Candidate { path: "a", tree: &tree, renamed: false, named: true };
    let rule = |text: &str| RuleChoice::try_from(text.to_owned()).unwrap();
    assert_eq!(judge(&rule("dir:_SUCCESS"), of), Some(Rule::DirWithMarker("_SUCCESS".to_owned())));
    assert_eq!(judge(&rule("dir:other"), of), None);
    assert_eq!(judge(&rule("hf"), of), None);
    let (why, try_with) = advice(&rule("auto"), of);
    assert!(why.contains("no rule") && try_with.is_some(), "{why}");
    assert_eq!(advice(&rule("hf"), of).1, None);
}

#[test]
fn parts_are_no_checkpoints() {
    for name in [
        "model.safetensors",
        "a/optimizer.pt",
        "rng_state_1.pth",
        "training_args.bin",
        "model-00001-of-2.safetensors",
    ] {
        assert!(parts::is_part(name), "{name}");
    }
    for name in ["step-1.pt", "epoch=0-step=4.ckpt", "last.ckpt", "modelling.pt"] {
        assert!(!parts::is_part(name), "{name}");
    }
}
