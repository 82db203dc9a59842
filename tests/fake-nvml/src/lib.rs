//! A fake `libnvidia-ml.so.1`: the NVML C ABI over GPUs that exist only in a control file.
//!
//! The agent's NVML child process loads it through nvml-wrapper in place of NVIDIA's library, so the
//! production path (dlopen, symbols, structs, event waits) is what runs in tests and `fleet dev`. Which GPUs
//! there are and what ails them comes from the file named by `FLEET_FAKE_NVML`
//! (`fleet-fake-nvml-control`), re-read whenever it changes. What a real card lacks answers
//! NOT_SUPPORTED here too. The library must never panic across the ABI, never write to standard
//! output, and never touch a real driver.
//!
//! Start reading at `state` (what is known, which GPU a handle means), then `abi` (how every
//! exported function answers); the other files are the functions themselves.

mod abi;
mod device;
mod events;
mod facts;
mod memory;
mod processes;
mod state;
mod system;
mod telemetry;
mod topology;
mod watch;
