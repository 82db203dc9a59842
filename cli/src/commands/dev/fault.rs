//! `dev fault`: breaks a pretended GPU or the network of a node of a running `fleet dev` cluster, or heals it.

use std::path::{Path, PathBuf};

use fleet_fake_nvml_control::{Control, ControlFile, Gpu, Profile};

use super::agent::{ask, running};
use super::state::{DevState, Network, Wish};
use crate::args::FaultArgs;
use crate::client::chain;
use crate::commands::Context;
use crate::errors::Failure;
use crate::exit_code::Exit;
use crate::output::text::say;

pub(in crate::commands) async fn fault(
    context: &Context,
    args: &FaultArgs,
) -> Result<Exit, Failure> {
    let folder = running(context, args.state.as_deref())?;
    if args.network {
        return change_network(&folder, &args.node, Network::Cut).await;
    }
    let done = change_gpus(&folder, args)?;
    let cut = DevState::read(&folder)?.node(&args.node)?.network == Some(Network::Cut);
    match args.clear && args.gpu.is_none() && cut {
        true => change_network(&folder, &args.node, Network::Connected).await,
        false => Ok(done),
    }
}

/// Has the `fleet dev` that runs cut a node off, or connect it again.
async fn change_network(folder: &Path, node: &str, to: Network) -> Result<Exit, Failure> {
    let network = || Ok::<_, Failure>(DevState::read(folder)?.node(node)?.network);
    if network()?.is_none() {
        let message = format!("the agent of {node} connects to the controllers directly");
        let hint = "start this cluster again without --direct: then a relay can be cut";
        return Err(Failure::new(Exit::Conflict, message).hint(hint));
    }
    let wish = match to {
        Network::Cut => Wish::Cut,
        Network::Connected => Wish::Connect,
    };
    if network()? != Some(to) {
        ask(folder, wish, node, || Ok((network()? == Some(to)).then_some(()))).await?;
    }
    say(&match to {
        Network::Cut => format!("{node}: cut off from the controllers; its jobs keep running"),
        Network::Connected => format!("{node}: connected to the controllers again"),
    });
    Ok(Exit::Done)
}

fn change_gpus(folder: &Path, args: &FaultArgs) -> Result<Exit, Failure> {
    let state = DevState::read(folder)?;
    let node = state.node(&args.node)?;
    let changed = ControlFile::new(&node.gpu_control)
        .update(|control| apply(control, args))
        .map_err(|error| Failure::new(Exit::Failed, chain(&error)))?;
    for line in changed? {
        say(&line);
    }
    Ok(Exit::Done)
}

/// The cluster's folder: named, or the one of `FLEET_CONFIG`.
pub(super) fn folder(context: &Context, named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(folder) = named {
        return Ok(folder.to_owned());
    }
    match context.named_config().and_then(|config| config.parent()) {
        Some(folder) if folder == Path::new("") => Ok(PathBuf::from(".")),
        Some(folder) => Ok(folder.to_owned()),
        None => Err(Failure::new(Exit::Usage, "which cluster?")
            .hint("set FLEET_CONFIG as `fleet dev` printed it, or give --state DIR")),
    }
}

/// Changes the GPU that is named, or all of the node, and says how, a line for each.
fn apply(control: &mut Control, args: &FaultArgs) -> Result<Vec<String>, Failure> {
    if args.no_driver || (args.clear && args.gpu.is_none()) {
        control.driver_loaded = !args.no_driver;
    }
    if args.no_driver {
        return Ok(vec![format!("{}: the driver is not loaded", args.node)]);
    }
    let count = control.gpus.len();
    let numbers = match args.gpu {
        Some(number) if number >= count => {
            let message = format!("{} has no GPU {number}", args.node);
            return Err(Failure::new(Exit::NotFound, message));
        }
        Some(number) => number..number + 1,
        None => 0..count,
    };
    // Before any of them is changed.
    for gpu in &control.gpus[numbers.clone()] {
        can_have(gpu.profile, args)?;
    }
    let gpus = control.gpus[numbers.clone()].iter_mut();
    Ok(numbers
        .zip(gpus)
        .map(|(number, gpu)| format!("{}:{number}: {}", args.node, change(gpu, args)))
        .collect())
}

/// Refuses what no such card reports.
fn can_have(profile: Profile, args: &FaultArgs) -> Result<(), Failure> {
    let (has_ecc, links) = match profile {
        Profile::TitanX | Profile::TitanXPascal => (false, 0),
        Profile::V100Pcie => (true, 0),
        Profile::V100Sxm2 => (true, 6),
        Profile::A100 => (true, 12),
    };
    if args.ecc.is_some() && !has_ecc {
        return Err(Failure::usage("--ecc", format!("a {profile} has no ECC")));
    }
    match args.nvlink_down {
        Some(_) if links == 0 => {
            Err(Failure::usage("--nvlink-down", format!("a {profile} has no NVLink")))
        }
        Some(link) if link >= links => {
            let problem =
                format!("the NVLinks of a card {profile} are 0 to {}, not {link}", links - 1);
            Err(Failure::usage("--nvlink-down", problem))
        }
        Some(_) | None => Ok(()),
    }
}

/// Changes one GPU and says how.
fn change(gpu: &mut Gpu, args: &FaultArgs) -> String {
    let faults = &mut gpu.faults;
    if let Some(code) = args.xid {
        gpu.push_xid(code);
        format!("XID {code}")
    } else if let Some(celsius) = args.temperature {
        faults.temperature_c = Some(celsius);
        format!("{celsius} °C")
    } else if args.lost {
        faults.lost = true;
        "fell off the bus".to_owned()
    } else if args.missing {
        faults.missing = true;
        "missing at the next start of the driver".to_owned()
    } else if args.hang {
        faults.hang = true;
        "calls hang".to_owned()
    } else if let Some(pages) = args.retired_pages {
        // Double-bit errors retire one page each; they wait for the next reset.
        faults.retired_pages.double_bit = pages;
        faults.retired_pages.pending = true;
        format!("{pages} memory pages wait for retirement")
    } else if let Some(errors) = args.ecc {
        faults.ecc.volatile_uncorrected = errors;
        faults.ecc.aggregate_uncorrected = faults.ecc.aggregate_uncorrected.max(errors);
        format!("{errors} uncorrectable ECC errors")
    } else if let Some(lanes) = args.pcie_width {
        faults.pcie_width = Some(lanes);
        format!("PCIe width is {lanes} lanes")
    } else if let Some(link) = args.nvlink_down {
        if !faults.nvlinks_down.contains(&link) {
            faults.nvlinks_down.push(link);
        }
        format!("NVLink {link} is down")
    } else if let Some(reason) = args.throttle {
        faults.throttle = vec![reason.of_driver()];
        format!("clocks are lowered: {}", reason.word())
    } else {
        gpu.clear_faults();
        "healthy".to_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;
    use fleet_fake_nvml_control::Throttle;

    use super::*;
    use crate::args::{Cli, DevVerb, Verb};
    use crate::client::Requests;
    use crate::times::Clock;

    fn typed(words: &[&str]) -> FaultArgs {
        let words = ["fleet", "dev", "fault", "--node", "titan01"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().verb {
            Verb::Dev(args) => match args.verb.unwrap() {
                DevVerb::Fault(fault) => fault,
                other => panic!("{other:?}"),
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
            network: None,
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
        let (dir, _context, control) = cluster();
        let broken = |words: &[&str]| {
            change_gpus(dir.path(), &typed(words)).unwrap();
            control.read().unwrap().gpus[1].clone()
        };
        assert_eq!(broken(&["--gpu", "1", "--xid", "63"]).xids[0].code, 63);
        assert_eq!(broken(&["--gpu", "1", "--temperature", "97"]).faults.temperature_c, Some(97));
        assert!(broken(&["--gpu", "1", "--lost"]).faults.lost);
        assert!(broken(&["--gpu", "1", "--hang"]).faults.hang);
        let retired = broken(&["--gpu", "1", "--retired-pages", "2"]).faults.retired_pages;
        assert!(retired.pending && retired.double_bit == 2);
        let ecc = broken(&["--gpu", "1", "--ecc", "3"]).faults.ecc;
        assert_eq!((ecc.volatile_uncorrected, ecc.aggregate_uncorrected), (3, 3));
        assert_eq!(broken(&["--gpu", "1", "--pcie-width", "4"]).faults.pcie_width, Some(4));
        let throttled = broken(&["--gpu", "1", "--throttle", "power-brake"]).faults.throttle;
        assert_eq!(throttled, [Throttle::HwPowerBrakeSlowdown]);
        assert!(broken(&["--gpu", "1", "--missing"]).faults.missing);
        assert_eq!(broken(&["--gpu", "1", "--clear"]).faults, Default::default());
        assert_eq!(control.read().unwrap().gpus[0].faults, Default::default());
    }

    #[test]
    fn without_a_number_all_gpus_of_the_node_have_it() {
        let (dir, _context, control) = cluster();
        change_gpus(dir.path(), &typed(&["--hang"])).unwrap();
        assert!(control.read().unwrap().gpus.iter().all(|gpu| gpu.faults.hang));
        change_gpus(dir.path(), &typed(&["--no-driver"])).unwrap();
        assert!(!control.read().unwrap().driver_loaded);
        change_gpus(dir.path(), &typed(&["--clear"])).unwrap();
        let healed = control.read().unwrap();
        assert!(healed.driver_loaded && healed.gpus.iter().all(|gpu| !gpu.faults.hang));
    }

    #[test]
    fn a_card_has_only_faults_that_it_can_report() {
        let (dir, _context, control) = cluster();
        let refused = |words: &[&str]| change_gpus(dir.path(), &typed(words)).unwrap_err().message;
        let said = refused(&["--gpu", "0", "--nvlink-down", "1"]);
        assert_eq!(said, "--nvlink-down: a v100-pcie has no NVLink");
        control.update(|control| control.gpus[1].profile = Profile::A100).unwrap();
        let said = refused(&["--gpu", "1", "--nvlink-down", "12"]);
        assert_eq!(said, "--nvlink-down: the NVLinks of a card a100 are 0 to 11, not 12");
        change_gpus(dir.path(), &typed(&["--gpu", "1", "--nvlink-down", "11"])).unwrap();
        assert_eq!(control.read().unwrap().gpus[1].faults.nvlinks_down, [11]);
        control.update(|control| control.gpus[1].profile = Profile::TitanX).unwrap();
        let said = refused(&["--ecc", "1"]);
        assert_eq!(said, "--ecc: a titan-x has no ECC");
        let unchanged = control.read().unwrap().gpus[0].faults.clone();
        assert_eq!(unchanged, Default::default(), "the other GPU was changed all the same");
    }

    #[tokio::test]
    async fn what_is_not_there_is_named() {
        let (dir, context, _control) = cluster();
        let missing = change_gpus(dir.path(), &typed(&["--gpu", "9", "--lost"])).unwrap_err();
        assert_eq!(missing.exit, Exit::NotFound);
        assert!(missing.message.contains("no GPU 9"));
        let mut other = typed(&["--gpu", "0", "--lost"]);
        other.node = "nobody".to_owned();
        let missing = change_gpus(dir.path(), &other).unwrap_err();
        assert!(missing.hint.unwrap().contains("titan01"));
        let stopped = fault(&context, &typed(&["--gpu", "0", "--lost"])).await.unwrap_err();
        assert_eq!(stopped.exit, Exit::Conflict);
        assert!(stopped.message.starts_with("no `fleet dev` runs in /"), "{}", stopped.message);
        assert!(stopped.hint.unwrap().starts_with("start it: sudo fleet dev --state /"));
        let nowhere = Context { config: None, ..context };
        let unnamed = fault(&nowhere, &typed(&["--gpu", "0", "--lost"])).await.unwrap_err();
        assert_eq!(unnamed.exit, Exit::Usage);
        let mut empty = typed(&["--gpu", "0", "--lost"]);
        empty.state = Some(dir.path().join("none"));
        assert_eq!(fault(&nowhere, &empty).await.unwrap_err().exit, Exit::NotFound);
    }

    #[tokio::test]
    async fn a_node_without_a_relay_cannot_be_cut_off() {
        let (dir, _context, _control) = cluster();
        let cut = change_network(dir.path(), "titan01", Network::Cut).await.unwrap_err();
        assert_eq!(cut.message, "the agent of titan01 connects to the controllers directly");
        assert_eq!(cut.exit, Exit::Conflict);
        assert!(cut.hint.unwrap().contains("without --direct"));
        let other = change_network(dir.path(), "titan02", Network::Cut).await.unwrap_err();
        assert_eq!(other.exit, Exit::NotFound);
    }
}
