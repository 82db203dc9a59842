"""Trains with real frameworks as jobs of `fleet dev`, breaks their GPU, and judges what the next attempt did.

`make frameworks` calls it through run.sh. The programs write a log step by step (steplog.py); a story holds where

  * the attempt loaded the checkpoint that the story names in advance, and began with the step after it;
  * no step before that checkpoint is computed again, and no more steps twice than those since it;
  * the optimizer's own count after the load is that of the checkpoint;
  * the job moved to another node, and its weights are those of a run that nobody interrupted.

A control is a run that must fail the same judgment: it shows that the judgment sees a missing resume.
It must never take the absence of an error for a resume.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = 16
SAVE_STEPS = 4
# The first attempt stays here: two checkpoints are saved, and two steps are computed after the second.
HOLD_AT = 10
# Saves in the attempt's own directory: of two options of one name the program takes the second.
OWN = ["sh", "-c", 'exec "$@" --output "$FLEET_CHECKPOINT_DIR"', "sh"]
READY_S = 60
COUNTED_S = 90
ENDED_S = 180
POLL_S = 0.3
FINAL = {"completed", "failed", "cancelled"}


class Broken(Exception):
    """A story did not go as it says."""


def wait(what, seconds, poll):
    """Asks until there is an answer, or the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = poll()
        if answer:
            return answer
        time.sleep(POLL_S)
    raise Broken(f"{what}: not within {seconds} s")


class Fleet:
    """A small cluster of real processes with two nodes of one pretended GPU each."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        state = folder / "cluster"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "FLEET_CONFIG": str(state / "fleet.toml"),
        }
        self.said = open(folder / "dev.log", "w", encoding="utf-8")
        command = ["setpriv", "--pdeathsig", "INT", "--", program, "dev", "--nodes", "2"]
        command += ["--gpus", "v100-pcie:1", "--state", str(state)]
        self.dev = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said, process_group=0
        )
        try:
            wait("two nodes with a free GPU", READY_S, self.ready)
        except Broken:
            self.stop()
            raise

    def ready(self):
        if self.dev.poll() is not None:
            raise Broken(f"fleet dev ended, see {self.said.name}")
        ran = self.run(["gpu", "list", "-o", "json"], check=False)
        return ran.returncode == 0 and ran.stdout.count('"free"') >= 2

    def run(self, words, check=True):
        ran = subprocess.run(
            [self.program, *words], env=self.environment, capture_output=True, text=True, timeout=60
        )
        if check and ran.returncode != 0:
            raise Broken(f"fleet {' '.join(words)}: {ran.stdout}{ran.stderr}")
        return ran

    def job(self, name):
        return json.loads(self.run(["job", "show", name, "-o", "json"]).stdout)

    def fault(self, node, *words):
        self.run(["dev", "fault", "--node", node, "--gpu", "0", *words])

    def stop(self):
        if self.dev.poll() is None:
            self.dev.send_signal(signal.SIGINT)
            self.dev.wait(60)
        self.said.close()


def read_log(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def argv(writer, folder, pace, hold):
    words = [sys.executable, "-B", str(HERE / writer), "--output", str(folder / "ck")]
    words += ["--log", str(folder / "steps.log"), "--steps", str(STEPS), "--save-steps", str(SAVE_STEPS)]
    return words + ["--pace", str(pace), "--hold-at", str(hold)]


def judge(log, expected, step, allowed, weights):
    """Everything that is wrong with a resume from the checkpoint `expected` of `step`.

    `allowed` is how many steps may be computed twice.
    """
    wrong = []
    loaded = [e["checkpoint"] for e in log if e["event"] == "loaded" and e["attempt"] == 2]
    if not loaded or any(name != expected for name in loaded):
        wrong.append(f"attempt 2 loaded {loaded or 'nothing'}, not {expected}")
    begun = [e for e in log if e["event"] == "begin" and e["attempt"] == 2]
    if [(e["step"], e["optimizer"]) for e in begun] != [(step, step)]:
        wrong.append(f"attempt 2 began with {begun}, not with step and optimizer at {step}")
    first = {e["step"] for e in log if e["event"] == "step" and e["attempt"] == 1}
    second = [e["step"] for e in log if e["event"] == "step" and e["attempt"] == 2]
    if second != list(range(step + 1, STEPS + 1)):
        wrong.append(f"attempt 2 computed the steps {second}, not {step + 1} to {STEPS}")
    twice = len([s for s in second if s in first])
    if twice > allowed:
        wrong.append(f"{twice} steps were computed twice, {allowed} may be")
    ended = [e["weights"] for e in log if e["event"] == "end"]
    if ended != [weights]:
        wrong.append(f"the weights are {ended}, not those of an uninterrupted run, {weights}")
    return wrong


class Story:
    def __init__(self, name, writer, **how):
        self.name, self.writer = name, writer
        # Flags of `fleet run`, words before the program, the file that is cut in half in the newest checkpoint.
        self.flags = how.get("flags", [])
        self.before = how.get("before", [])
        self.tear = how.get("tear")
        # Each attempt has a directory of its own, and the program saves there.
        self.own = how.get("own", False)
        # The step of the checkpoint that attempt 2 must load. None: the next one after the fault.
        self.step = how["step"]
        # What a control must be found guilty of.
        self.control = how.get("control")
        self.fault = how.get("fault", ["--lost"])
        self.pace, self.hold = how.get("pace", 0.05), how.get("hold", HOLD_AT)

    def checkpoint_name(self, step):
        if self.writer == "hf.py":
            return f"checkpoint-{step}"
        # An epoch has as many steps as there are between two checkpoints.
        return f"epoch={step // SAVE_STEPS - 1}-step={step}.ckpt"

    def play(self, fleet, folder, weights):
        """What is wrong with the resume."""
        (folder / "ck").mkdir()
        words = ["run", "-d", "-G", "1", "-J", self.name, "-w", str(folder), "-t", "1h"]
        words += ["--checkpoint-dir", str(folder / "ck" / ("{attempt}" if self.own else "")), *self.flags, "--"]
        words += OWN if self.own else []
        job = fleet.run(words + self.before + argv(self.writer, folder, self.pace, self.hold)).stdout.strip()
        log = folder / "steps.log"
        try:
            step = wait("the step of the fault", COUNTED_S, lambda: self.due(fleet, job, log))
            node = fleet.job(job)["node"]
            if self.tear:
                newest = folder / "ck" / ("1" if self.own else "") / self.checkpoint_name(8) / self.tear
                os.truncate(newest, newest.stat().st_size // 2)
            fleet.fault(node, *self.fault)
            ended = wait("it ends", ENDED_S, lambda: final(fleet.job(job)))
            # An evicted job leaves at the checkpoint, before it saves another one.
            allowed = SAVE_STEPS - 1 if self.step is None else HOLD_AT - step
            wrong = judge(read_log(log), self.checkpoint_name(step), step, allowed, weights)
            if ended["state"] != "completed":
                wrong.append(f"the job is {ended['state']}")
            elif ended["node"] == node:
                wrong.append(f"it did not leave {node}")
            return wrong
        finally:
            story = fleet.run(["why", job], check=False).stdout
            (folder / "why.txt").write_text(story, encoding="utf-8")
            output = fleet.run(["logs", job], check=False).stdout
            (folder / "output.txt").write_text(output, encoding="utf-8")
            fleet.run(["cancel", job], check=False)

    def due(self, fleet, job, log):
        """Whether the fault may come; if so, the step of the checkpoint that attempt 2 must load."""
        shown = fleet.job(job)
        if shown["state"] in FINAL:
            raise Broken(f"the job ended too early, see {log.parent}")
        now = max((e["step"] for e in read_log(log) if e["event"] == "step"), default=0)
        if self.step is None:
            # Just after a save: the next checkpoint is some steps away, and is the one to leave at.
            return now + SAVE_STEPS - 1 if counted(shown) and now % SAVE_STEPS == 1 else None
        return self.step if now == HOLD_AT and counted(shown) == 2 else None


def counted(job):
    return (job.get("last_checkpoint") or {}).get("number", 0)


def final(job):
    # A job that asks its owner has come to an end of its own as well.
    return job if job["state"] in FINAL or job.get("question") else None


STORIES = [
    Story("hf-lost", "hf.py", step=8),
    Story("hf-evicted", "hf.py", step=None, fault=["--retired-pages", "2"], pace=1.5, hold=-1),
    Story("hf-torn", "hf.py", step=4, tear="optimizer.pt"),
    Story("hf-control-aside-off", "hf.py", step=4, tear="optimizer.pt",
          flags=["--checkpoint-aside", "off"], control="attempt 2 loaded ['checkpoint-8']"),
    Story("hf-own", "hf.py", step=8, own=True),
    Story("hf-own-torn", "hf.py", step=4, own=True, tear="optimizer.pt"),
    Story("lightning-lost", "lightning_job.py", step=8),
    Story("lightning-own-last", "lightning_job.py", step=8, own=True, before=["env", "LOOKS_FOR_LAST=1"]),
    Story("lightning-control-no-variable", "lightning_job.py", step=8,
          before=["env", "-u", "FLEET_RESUME_FROM"], control="attempt 2 loaded nothing"),
]


def uninterrupted(writer, folder):
    """The weights of a run outside fleet."""
    (folder / "ck").mkdir(parents=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    done = subprocess.run(
        argv(writer, folder, pace=0, hold=-1), env=environment, capture_output=True, text=True, timeout=300
    )
    ends = [e["weights"] for e in read_log(folder / "steps.log") if e["event"] == "end"]
    if done.returncode != 0 or len(ends) != 1:
        raise Broken(f"{writer} outside fleet: {done.stderr[-2000:]}")
    return ends[0]


def tell(story, folder, wrong):
    """Prints the outcome. A control holds where the judgment fails."""
    held = any(line.startswith(story.control) for line in wrong) if story.control else not wrong
    print(f"{'ok  ' if held else 'FAIL'} {story.name}")
    for line in wrong:
        print(f"       {'as it must: ' if story.control else ''}{line}")
    if story.control and not held:
        print(f"       the judgment does not say of the control: {story.control}")
    if not held:
        print(f"       see {folder}")
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleet", required=True, help="the program fleet, with the others beside it")
    parser.add_argument("--only", help="the stories whose name begins so")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fleet-frameworks-"))
    folder.chmod(0o755)
    chosen = [s for s in STORIES if s.name.startswith(options.only or "")]
    passed = failed = 0
    weights = {w: uninterrupted(w, folder / f"alone-{w}") for w in {s.writer for s in chosen}}
    for story in chosen:
        # A cluster of its own: a lost GPU does not come back by itself.
        place = folder / story.name
        place.mkdir()
        fleet = None
        try:
            fleet = Fleet(str(Path(options.fleet).resolve()), place)
            held = tell(story, place, story.play(fleet, place, weights[story.writer]))
        except Broken as error:
            print(f"FAIL {story.name}\n       {error}\n       see {place}")
            held = False
        finally:
            if fleet:
                fleet.stop()
        passed, failed = passed + held, failed + (not held)
    if not failed:
        shutil.rmtree(folder)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
