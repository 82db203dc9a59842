//! GPUs: what there is, how it is doing, and what goes wrong with it.
//!
//! A driver call can hang past SIGKILL, and an open NVML handle blocks GPU reset and driver
//! upgrade. So the agent never enters the driver: [`probe`] runs in a child process
//! (`fleet-agent nvml-probe`) and speaks JSON lines ([`wire`]) with the [`Monitor`] task, which owns
//! the child, gives every step a deadline, and replaces a child that does not answer. Others hold a
//! [`Handle`]: the latest [`GpuSnapshot`], a fresh sample on demand, and the switch that releases
//! the driver. What is not known is said as `Unknown`; what a card cannot do as `NotSupported`;
//! neither is ever zero, and neither is ever healthy.

mod monitor;
mod near;
mod numbers;
mod observed;
mod probe;
mod report;
mod signals;
mod wire;

pub use monitor::{Config, GpuError, GpuEvent, GpuEventKind, Handle, Monitor};
pub(crate) use near::{SYS, near_cpus};
pub use numbers::Numbers;
pub use observed::Observed;
pub use probe::{Options as ProbeOptions, run_probe};
pub use report::{
    DriverInfo, DriverState, EccCounts, GpuInfo, GpuProcess, GpuSnapshot, GpuState, Link,
    ProcessKind, RemappedRows, RetiredPages, Telemetry,
};
pub use signals::{event_signal, snapshot_signals};
