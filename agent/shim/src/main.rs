//! The program `fleet-shim`. The agent starts one for each allocation.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleet_shim::main()
}
