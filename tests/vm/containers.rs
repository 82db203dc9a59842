//! Containers on one machine that is controller and node: whatever runs them, they open what the one may who asked for them.
//!
//! No driver is behind the GPUs' nodes: one that may be opened says ENXIO, one that may not EPERM. The containers see the
//! machine's /dev, so that what decides is not whether a node is there.

use anyhow::{Result, ensure};
use fleet_tests::steps::Steps;

use crate::lab;
use crate::machine::Machine;
use crate::page::Page;
use crate::site::Site;
use crate::under_a_job::{COUNTING, PROCESSES};

/// A root folder of one program, from which both make an image.
const IMAGE: &str = "mkdir -p /root/image/bin && cp /bin/busybox /root/image/bin/ && \
    for name in sh cat sleep id; do ln -sf busybox /root/image/bin/$name; done && \
    tar -C /root/image -c . > /home/image.tar && chmod 644 /home/image.tar";
const OPEN_ALL: &str = "for n in 0 1 2 3; do cat /machine/nvidia$n; done 2>&1; true";
/// Without a network, with the machine's devices in a folder.
const OPTIONS: &str = "--rm --network none -v /dev:/machine";

pub(crate) fn run(site: &Site, steps: &mut Steps) -> Result<()> {
    let page = Page::operations()?;
    let machine = &*site.boot("titan01")?;
    steps.step("a fleet of one machine with dockerd and Podman", || {
        lab::install(machine, &page, "controller")?;
        lab::begin_controller(machine, &page)?;
        lab::install(machine, &page, "GPU node")?;
        lab::join(machine, machine, &page)?;
        machine.ok(IMAGE)?;
        machine.ok("usermod -aG docker bob && docker import /home/image.tar tools")?;
        machine.ok_as("ada", "podman import /home/image.tar tools").map(drop)
    });
    if !steps.all_held() {
        return Ok(());
    }
    steps.step("containers of dockerd open every GPU, and doctor says so", || unheld(machine));
    steps.step("dockerd is set up as the page says; nobody opens a GPU any more", || {
        told(machine, &page)
    });
    steps.step("`fleet docker run` opens what is reserved, for as long as it is", || {
        reserved(machine)
    });
    steps
        .step("a job runs in an image that dockerd has, for who may use dockerd", || jobs(machine));
    steps.step("they are held without the agent, and after a reload of systemd", || alone(machine));
    steps.step("rootless Podman opens what is reserved, for every user inside", || podman(machine));
    steps.step(
        "a container outlives the removal of fleet and opens every GPU then, even where fleet's settings are broken",
        || outlives(machine, &page),
    );
    Ok(())
}

/// How many of the four said ENXIO, and how many EPERM.
fn opened(said: &str) -> (usize, usize) {
    let count = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    (count("No such device or address"), count("Operation not permitted"))
}

fn in_docker(machine: &Machine, user: &str, run: &str, options: &str) -> Result<(usize, usize)> {
    let line = format!("{run} {OPTIONS} {options} tools sh -c '{OPEN_ALL}'");
    Ok(opened(&machine.ok_as(user, &line)?))
}

fn in_docker_of_root(machine: &Machine, run: &str) -> Result<(usize, usize)> {
    let line = format!("{run} {OPTIONS} --privileged tools sh -c '{OPEN_ALL}'");
    Ok(opened(&machine.ok(&line)?))
}

fn codes(machine: &Machine) -> Result<String> {
    let doctor = "fleet doctor -o json | grep -o 'docker_[a-z]*' | sort -u | tr '\\n' ' '";
    machine.ok(doctor)
}

fn unheld(machine: &Machine) -> Result<()> {
    lab::enforce(machine, "titan01", "on")?;
    ensure!(lab::opened(machine, "bob")? == (0, 4), "bob himself is kept out");
    let found = in_docker(machine, "bob", "docker run", "--privileged")?;
    ensure!(found == (4, 0), "his container: {found:?}");
    let said = codes(machine)?;
    ensure!(said.contains("docker_group") && said.contains("docker_unconfined"), "{said}");
    Ok(())
}

fn told(machine: &Machine, page: &Page) -> Result<()> {
    for line in page.commands("Docker and Podman", 0)? {
        machine.ok(&line)?;
    }
    for options in ["--privileged", "--privileged --user 33"] {
        let found = in_docker(machine, "bob", "docker run", options)?;
        ensure!(found == (0, 4), "{options}: {found:?}");
    }
    let denied = machine.ok("fleet-agent gate show")?;
    ensure!(denied.contains("containers of dockerd"), "not counted: {denied}");
    let said = codes(machine)?;
    ensure!(said.contains("docker_group") && !said.contains("docker_unconfined"), "{said}");
    let refused = machine.run_as("bob", "fleet docker run --rm tools id")?;
    let none = refused.code() == 3 && refused.stderr.contains("you hold no GPU");
    ensure!(none, "{}", refused.stderr);
    let root = machine.run("fleet docker run --rm tools id")?;
    ensure!(root.stderr.contains("--cgroup-parent=system.slice"), "{}", root.stderr);
    let found = in_docker_of_root(machine, "docker run --cgroup-parent=system.slice")?;
    ensure!(found == (4, 0), "the machine's own: {found:?}");
    Ok(())
}

fn reserve(machine: &Machine, user: &str, gpu: u32) -> Result<String> {
    let id = machine.ok_as(user, &format!("fleet reserve --gpu titan01:{gpu} -t 1h"))?;
    machine.until_as(user, "it is theirs", &format!("fleet held | grep -q titan01:{gpu}"))?;
    Ok(id)
}

fn reserved(machine: &Machine) -> Result<()> {
    let id = reserve(machine, "bob", 1)?;
    for options in ["--privileged", "--privileged --user 33"] {
        let found = in_docker(machine, "bob", "fleet docker run", options)?;
        ensure!(found == (1, 3), "{options}: {found:?}");
    }
    let found = in_docker(machine, "bob", "docker run", "--privileged")?;
    ensure!(found == (0, 4), "without fleet: {found:?}");
    // Its own nodes, with what docker lets a container open by itself.
    let own = "fleet docker run --rm --network none --security-opt apparmor=unconfined tools sh -c 'cat /dev/nvidia0 /dev/nvidia1 2>&1; true'";
    let said = machine.ok_as("bob", own)?;
    ensure!(opened(&said).0 == 1 && said.contains("No such file"), "its own nodes: {said}");
    let work = format!(
        "fleet docker run -d --name work {OPTIONS} --privileged tools \
         sh -c 'while :; do cat /machine/nvidia1 2>&1; sleep 1; done'"
    );
    machine.ok_as("bob", &work)?;
    let last = |text: &str| format!("docker logs --tail 1 work 2>&1 | grep -q '{text}'");
    machine.until_as("bob", "the container opens its GPU", &last("No such device or address"))?;
    let tree = machine.ok("systemd-cgls --no-pager -l -u fleetdocker.slice")?;
    ensure!(tree.contains("fleetdocker-u") && tree.contains(".scope"), "{tree}");
    machine.ok_as("bob", &format!("fleet release {id}"))?;
    machine.until_as("bob", "it does not any more", &last("Operation not permitted"))?;
    reserve(machine, "bob", 1)?;
    machine.until_as("bob", "and opens it again", &last("No such device or address")).map(drop)
}

fn jobs(machine: &Machine) -> Result<()> {
    let run = |user: &str, image: &str| {
        let line = format!("fleet run --image docker-daemon:{image} -- sh -c 'id -u; cat /made'");
        machine.run_as(user, &line)
    };
    let build = |word: &str| {
        let context = "mkdir -p /root/made && cd /root/made && printf 'FROM tools\\nCOPY made /made\\n' > Dockerfile";
        let build = "DOCKER_BUILDKIT=0 docker build -q -t lab/made .";
        machine.ok(&format!("{context} && echo {word} > made && {build}"))
    };
    let uid = machine.ok_as("bob", "id -u")?;
    for word in ["first", "second"] {
        build(word)?;
        let ran = run("bob", "lab/made")?;
        let said = ran.ok()?;
        ensure!(said.trim_end() == format!("{uid}\n{word}"), "{word}: {said}");
    }
    let id = machine.ok("docker image inspect -f '{{.Id}}' lab/made")?;
    let shown = machine.ok_as("bob", "fleet job show @last")?;
    ensure!(shown.contains(&id), "not which image it was, {id}: {shown}");
    ensure!(run("bob", &id)?.ok()?.trim_end().ends_with("second"), "by its id");
    let listed = machine.ok_as("bob", "fleet image list")?;
    ensure!(listed.contains("docker-daemon:docker.io/lab/made:latest"), "{listed}");
    for (user, image, said) in
        [("ada", "lab/made", "may not use the docker"), ("bob", "no/such", "has no image")]
    {
        let refused = run(user, image)?;
        let right = refused.code() == 125 && refused.stderr.contains(said);
        ensure!(right, "{user}, {image}: {} {}", refused.code(), refused.stderr);
    }
    Ok(())
}

fn alone(machine: &Machine) -> Result<()> {
    let opens = |what: &str| {
        let found = in_docker(machine, "bob", "docker run", "--privileged")?;
        ensure!(found == (0, 4), "{what}, where nobody answers for it: {found:?}");
        let line = "docker exec work sh -c 'cat /machine/nvidia0 /machine/nvidia1 2>&1; true'";
        let said = machine.ok_as("bob", line)?;
        ensure!(opened(&said) == (1, 1), "{what}, bob's: {said}");
        Ok(())
    };
    machine.ok("systemctl stop fleet-agent")?;
    opens("without the agent")?;
    machine.ok("systemctl daemon-reload")?;
    opens("after a reload")?;
    machine.ok("systemctl start fleet-agent")?;
    machine.until_as("bob", "the agent is back", "fleet held | grep -q titan01:1")?;
    opens("with another agent")?;
    machine.ok_as("bob", "docker kill work && fleet release @last").map(drop)
}

fn podman(machine: &Machine) -> Result<()> {
    let run = |user: &str| {
        let line = format!("podman run {OPTIONS} --user {user} tools sh -c 'id -u; {OPEN_ALL}'");
        machine.ok_as("ada", &line)
    };
    ensure!(opened(&run("33")?) == (0, 4), "nothing is reserved");
    reserve(machine, "ada", 2)?;
    for user in ["0", "33"] {
        let said = run(user)?;
        ensure!(opened(&said) == (1, 3) && said.starts_with(user), "user {user}: {said}");
    }
    let shown = machine.ok("fleet-agent gate show")?;
    ensure!(shown.contains("denied  ada") && !shown.contains("uid 100032"), "not ada's: {shown}");
    Ok(())
}

fn outlives(machine: &Machine, page: &Page) -> Result<()> {
    let run = format!("docker run -d --name stays {OPTIONS} --privileged tools sleep 10000");
    machine.ok_as("bob", &run)?;
    let open = format!("docker exec stays sh -c '{OPEN_ALL}'");
    let before = opened(&machine.ok_as("bob", &open)?);
    ensure!(before == (0, 4), "with fleet: {before:?}");
    let id = lab::submit(machine, "", COUNTING)?;
    lab::job_in(machine, &id, "running")?;
    machine.ok("echo 'nonsense = 1' >> /etc/fleet/agent.toml")?;
    let said = machine.ok(&format!("{} 2>&1", page.in_table("Remove", "remove")?))?;
    ensure!(said.contains("containers of dockerd run on"), "not said: {said}");
    ensure!(said.contains("unknown field `nonsense`"), "not said: {said}");
    let job = machine.run(PROCESSES)?;
    ensure!(job.code() == 1, "the job runs on: {}", job.stdout);
    let after = opened(&machine.ok_as("bob", &open)?);
    ensure!(after == (4, 0), "without fleet: {after:?}");
    machine.ok_as("bob", "docker kill stays").map(drop)
}
