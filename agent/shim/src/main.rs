//! The program `fleet-shim`. The agent starts one for each allocation, and mounts it into containers as their init.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleet_shim::main()
}
