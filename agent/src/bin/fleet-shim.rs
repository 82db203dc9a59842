//! The `fleet-shim` binary: see `fleet_agent::shim`. Started by the agent, one per allocation, and mounted
//! into containers as their init.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleet_agent::shim::main()
}
