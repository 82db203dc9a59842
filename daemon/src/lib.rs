//! What every program of fleet that runs for ever needs around its work: its configuration file, its
//! log, its service manager, and a way to look inside.
//!
//! Used by `fleet-controller` and `fleet-agent`, and by nothing else. It knows no node, job or
//! lease, and no message between parts of fleet: what is specific comes in as a value or a trait.
//!
//! * `config_file`: reads a TOML file, says all that is wrong with it at once;
//! * `logging`, `log_filter`, `recent`: the log, its level at run time, its last lines;
//! * `process`, `reload`: signals and exit codes; the configuration read again;
//! * `systemd`, `progress`: ready, reloading, stopping, and a watchdog that is fed only while every
//!   main loop answers;
//! * `metrics`, `process_metrics`: what Prometheus reads;
//! * `http`: `/metrics`, `/healthz`, `/readyz`, and root's way in over a Unix socket;
//! * `bundle`, `redact`: a file to send to people who help, without secrets;
//! * `manual`, `completion`: pages for man(1) and what shells complete, from what can be typed;
//! * `doctor`: facts about the machine with time limits, and what they mean.

pub mod bundle;
pub mod completion;
pub mod config_file;
pub mod doctor;
pub mod http;
pub mod log_filter;
pub mod logging;
pub mod manual;
pub mod metrics;
pub mod process;
pub mod process_metrics;
pub mod progress;
mod recent;
pub mod redact;
pub mod reload;
pub mod systemd;
