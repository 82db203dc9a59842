//! On which CPUs a job runs.

use std::{collections::BTreeMap, fs};

use fleet_agent::runtime::Runtime;
use fleet_kernel::cgroup::{CpuSet, Hierarchies, Mode};
use fleet_shim::protocol::ExecRequest;

use crate::{
    allocation::{Allocation, runtimes},
    talking::read_all,
};

/// As the job sees it: its own list, and how many its libraries count.
const LOOK: &str = "grep Cpus_allowed_list /proc/self/status | cut -f 2; nproc";

fn own_cpus() -> CpuSet {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    CpuSet::parse(list.unwrap()).unwrap()
}

/// One of several CPUs, by its number: the last one, where a job does not land by itself.
fn one_cpu() -> Option<String> {
    let hierarchies = Hierarchies::detect().unwrap();
    let unified = hierarchies.unified().filter(|_| hierarchies.mode() == Mode::Unified);
    let offered = unified.map_or_else(
        || hierarchies.v1("cpuset").is_some(),
        |root| fs::read_to_string(root.join("cgroup.controllers")).unwrap().contains("cpuset"),
    );
    if !offered || own_cpus().len() < 2 {
        eprintln!("SKIPPED: no cpuset controller, or a single CPU, on this machine");
        return None;
    }
    let all = own_cpus().to_string();
    all.rsplit([',', '-']).next().map(str::to_owned)
}

fn near(runtime: &Runtime, script: &str, cpus: &str, cpu_millis: u64) -> Allocation {
    let mut job = Allocation::shell(runtime, script);
    job.prepared.near_cpus = Some(CpuSet::parse(cpus).unwrap());
    job.record.order.cpu_millis = cpu_millis;
    job
}

#[tokio::test]
async fn a_job_and_what_is_run_beside_it_keep_to_its_cpus() {
    let Some(cpu) = one_cpu() else { return };
    for runtime in runtimes() {
        let job = near(&runtime, &format!("{LOOK}; exec sleep 1000"), &cpu, 1_000);
        job.launch().await;
        let wanted = format!("{cpu}\n1\n");
        job.wait_for("two lines", || (job.output().lines().count() == 2).then_some(())).await;
        assert_eq!(job.output(), wanted);
        let state = job.running().await;
        assert_eq!(state.far, None);
        let request = ExecRequest {
            argv: ["/bin/sh", "-c", LOOK].map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            cwd: None,
            tty: None,
        };
        let (beside, problem, _) = read_all(job.client().await.exec(request).await.unwrap()).await;
        assert_eq!(beside, wanted, "{problem}");
        job.client().await.kill().await.unwrap();
        job.exit().await;
        job.nothing_is_left().await;
    }
}

/// It asked for two CPUs, so on one it would be slower; and the memory it may use is as without a set.
#[tokio::test]
async fn a_job_never_has_fewer_cpus_than_its_limit_nor_less_memory() {
    let Some(cpu) = one_cpu() else { return };
    let memory = "grep Mems_allowed_list /proc/self/status | cut -f 2";
    for runtime in runtimes() {
        let (all, of_one) = (own_cpus().to_string(), cpu.as_str());
        let mut memories = Vec::new();
        for (cpu_millis, cpus) in [(1_001, all.as_str()), (1_000, of_one)] {
            let job = near(&runtime, &format!("{memory}; {LOOK}"), &cpu, cpu_millis);
            job.launch().await;
            assert_eq!(job.exit().await.code, Some(0));
            let output = job.output();
            let (first, rest) = output.split_once('\n').unwrap();
            assert_eq!(rest.lines().next(), Some(cpus));
            memories.push(first.to_owned());
            job.nothing_is_left().await;
        }
        assert_eq!(memories[0], memories[1]);
    }
}
