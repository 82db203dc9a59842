//! A call on a GPU that hangs never returns, and the others still answer. In a test binary of its own: the
//! hung thread stays until the process ends.
#![allow(clippy::unwrap_used)]

mod machine;

use std::sync::mpsc;
use std::time::Duration;

use fleet_fake_nvml_control::{Control, Profile};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;

#[test]
fn a_hung_call_never_returns_and_other_gpus_answer() {
    let file = machine::control_file();
    file.write(&Control::machine(&[Profile::TitanX; 2], "hang", 0)).unwrap();
    let nvml = Nvml::builder().lib_path(machine::library().as_os_str()).init().unwrap();
    let nvml: &'static Nvml = Box::leak(Box::new(nvml));
    let temperature = move |index| {
        nvml.device_by_index(index).and_then(|gpu| gpu.temperature(TemperatureSensor::Gpu))
    };
    temperature(0).unwrap();
    file.update(|control| control.gpus[0].faults.hang = true).unwrap();
    let (told, answer) = mpsc::sync_channel(1);
    std::thread::spawn(move || told.send(temperature(0).is_ok()));
    assert!(answer.recv_timeout(Duration::from_millis(300)).is_err());
    temperature(1).unwrap();
    file.update(|control| control.gpus[0].clear_faults()).unwrap();
    assert!(answer.recv_timeout(Duration::from_millis(300)).is_err(), "the driver is stuck");
    temperature(0).unwrap();
}
