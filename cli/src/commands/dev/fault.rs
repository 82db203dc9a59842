//! `dev fault`: breaks a pretended GPU of a running `fleet dev` cluster, or heals it.

use std::path::{Path, PathBuf};

use fleet_fake_nvml_control::{Control, ControlFile};

use super::state::DevState;
use crate::args::FaultArgs;
use crate::client::chain;
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

pub(in crate::commands) fn fault(context: &Context, args: &FaultArgs) -> Result<Exit, Failure> {
    let state = DevState::read(&folder(context, args)?)?;
    let node = state.nodes.iter().find(|node| node.name == args.node).ok_or_else(|| {
        let names: Vec<&str> = state.nodes.iter().map(|node| node.name.as_str()).collect();
        let message = format!("there is no node {:?} in this cluster", args.node);
        Failure::new(Exit::NotFound, message).hint(format!("there are {}", names.join(", ")))
    })?;
    let changed = ControlFile::new(&node.gpu_control)
        .update(|control| apply(control, args))
        .map_err(|error| Failure::new(Exit::Failed, chain(&error)))?;
    let what = changed.ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("{} has no GPU {}", args.node, args.gpu))
    })?;
    say(&format!("{}:{}: {what}", args.node, args.gpu));
    Ok(Exit::Done)
}

/// The cluster's folder: named, or the one `FLEET_CONFIG` lies in.
fn folder(context: &Context, args: &FaultArgs) -> Result<PathBuf, Failure> {
    if let Some(folder) = &args.state {
        return Ok(folder.clone());
    }
    match context.named_config().and_then(|config| config.parent()) {
        Some(folder) if folder == Path::new("") => Ok(PathBuf::from(".")),
        Some(folder) => Ok(folder.to_owned()),
        None => Err(Failure::new(Exit::Usage, "which cluster?")
            .hint("set FLEET_CONFIG as `fleet dev` printed it, or give --state DIR")),
    }
}

/// Changes one GPU and says how; nothing if there is no such GPU.
fn apply(control: &mut Control, args: &FaultArgs) -> Option<String> {
    let gpu = control.gpus.get_mut(args.gpu)?;
    let faults = &mut gpu.faults;
    Some(if let Some(code) = args.xid {
        gpu.push_xid(code);
        format!("XID {code}")
    } else if let Some(celsius) = args.temperature {
        faults.temperature_c = Some(celsius);
        format!("{celsius} °C")
    } else if args.lost {
        faults.lost = true;
        "fell off the bus".to_owned()
    } else if args.hang {
        faults.hang = true;
        "calls hang".to_owned()
    } else if let Some(pages) = args.retired_pages {
        // Double-bit errors retire one page each; they wait for the next reset.
        faults.retired_pages.double_bit = pages;
        faults.retired_pages.pending = true;
        format!("{pages} memory pages wait for retirement")
    } else {
        gpu.clear_faults();
        "healthy".to_owned()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;
    use fleet_fake_nvml_control::Profile;

    use super::*;
    use crate::args::{Cli, DevVerb, Verb};
    use crate::client::Requests;
    use crate::times::Clock;

    fn typed(words: &[&str]) -> FaultArgs {
        let words = ["fleet", "dev", "fault", "--node", "titan01"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().verb {
            Verb::Dev(args) => match args.verb.unwrap() {
                DevVerb::Fault(fault) => fault,
            },
            other => panic!("{other:?}"),
        }
    }

    fn cluster() -> (tempfile::TempDir, Context, ControlFile) {
        let dir = tempfile::tempdir().unwrap();
        let control = ControlFile::new(dir.path().join("gpus.toml"));
        control.write(&Control::machine(&[Profile::V100Pcie; 2], "titan01", 0)).unwrap();
        let node = super::super::state::DevNode {
            name: "titan01".to_owned(),
            gpu_control: control.path().to_owned(),
            state_dir: dir.path().to_owned(),
        };
        let config = dir.path().join("fleet.toml");
        let state = DevState {
            schema: DevState::SCHEMA.to_owned(),
            config: config.clone(),
            processes: Vec::new(),
            nodes: vec![node],
        };
        state.write(dir.path()).unwrap();
        let clock = Clock::of_this_machine();
        let context = Context {
            config: Some(config),
            json: false,
            clock,
            vouched: None,
            login: None,
            requests: Requests::default(),
        };
        (dir, context, control)
    }

    #[test]
    fn each_fault_reaches_the_gpu_it_names_and_clear_takes_it_back() {
        let (_dir, context, control) = cluster();
        let broken = |words: &[&str]| {
            fault(&context, &typed(words)).unwrap();
            control.read().unwrap().gpus[1].clone()
        };
        assert_eq!(broken(&["--gpu", "1", "--xid", "63"]).xids[0].code, 63);
        assert_eq!(broken(&["--gpu", "1", "--temperature", "97"]).faults.temperature_c, Some(97));
        assert!(broken(&["--gpu", "1", "--lost"]).faults.lost);
        assert!(broken(&["--gpu", "1", "--hang"]).faults.hang);
        let retired = broken(&["--gpu", "1", "--retired-pages", "2"]).faults.retired_pages;
        assert!(retired.pending && retired.double_bit == 2);
        assert_eq!(broken(&["--gpu", "1", "--clear"]).faults, Default::default());
        assert_eq!(control.read().unwrap().gpus[0].faults, Default::default());
    }

    #[test]
    fn what_is_not_there_is_named() {
        let (dir, context, _control) = cluster();
        let missing = fault(&context, &typed(&["--gpu", "9", "--lost"])).unwrap_err();
        assert_eq!(missing.exit, Exit::NotFound);
        assert!(missing.message.contains("no GPU 9"));
        let mut other = typed(&["--gpu", "0", "--lost"]);
        other.node = "nobody".to_owned();
        let missing = fault(&context, &other).unwrap_err();
        assert!(missing.hint.unwrap().contains("titan01"));
        let nowhere = Context { config: None, ..context };
        assert_eq!(
            fault(&nowhere, &typed(&["--gpu", "0", "--lost"])).unwrap_err().exit,
            Exit::Usage
        );
        let mut empty = typed(&["--gpu", "0", "--lost"]);
        empty.state = Some(dir.path().join("none"));
        assert_eq!(fault(&nowhere, &empty).unwrap_err().exit, Exit::NotFound);
    }
}
