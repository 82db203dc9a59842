"""Tests of train.py: its promise is that an interruption changes nothing but the time it takes.

Run by `make test`, or by hand: python3 -m unittest discover -s tests/demo
"""

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "train.py"
STEPS = 120
EVERY = 25
# What the weights are after STEPS steps, on every machine and every Python from 3.9 to 3.13.
WEIGHTS_SHA256 = "2e9742ef8640187570ac305d3c9e63696b4cabf1c179ae6afd4eb4150cd64a96"
DEADLINE = 60.0  # Seconds that one run of the program may take on a busy machine.


class Run:
    """One attempt of the program, as fleet would start it."""

    def __init__(self, folder, attempt=1, resume_from=None, notify=None, options=()):
        self.folder = Path(folder)
        self.checkpoints = self.folder / f"attempt-{attempt}"
        environment = {
            "PATH": os.environ["PATH"],
            "FLEET_JOB_ID": "job-4k7wq2",
            "FLEET_ATTEMPT": str(attempt),
            "FLEET_CHECKPOINT_DIR": str(self.checkpoints),
        }
        if resume_from:
            environment["FLEET_RESUME_FROM"] = str(resume_from)
        if notify:
            environment["FLEET_NOTIFY_SOCKET"] = str(notify)
        self.process = subprocess.Popen(
            [sys.executable, TRAIN, "--steps", str(STEPS), "--checkpoint-every", str(EVERY), *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, words):
        """Reads the output until a line holds `words`."""
        for line in self.process.stdout:
            if words in line:
                return
        raise AssertionError(f"the program ended without printing {words!r}")

    def finish(self):
        """Waits for the end; returns (exit code, rest of stdout, stderr)."""
        try:
            out, err = self.process.communicate(timeout=DEADLINE)
        finally:
            self.process.kill()
            self.process.wait()
        return self.process.returncode, out, err

    def latest(self):
        return max(self.checkpoints.glob("step-*.ckpt"))

    def weights(self):
        return (self.folder / "weights.bin").read_bytes()

    def computed_steps(self):
        lines = (self.folder / "steps.log").read_text().splitlines()
        return [int(re.search(r" step (\d+) ", line).group(1)) for line in lines]


class TrainTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def start(self, name, **how):
        (self.folder / name).mkdir(exist_ok=True)
        run = Run(self.folder / name, **how)
        self.addCleanup(run.finish)
        return run

    def run_to_end(self, name, **how):
        run = self.start(name, **how)
        code, out, err = run.finish()
        self.assertEqual((code, err), (0, ""))
        return run, out

    def interrupt(self, name, how, options=()):
        """Starts a slow run, stops it by a signal after its second checkpoint."""
        run = self.start(name, options=("--step-seconds", "0.02", *options))
        run.wait_for(f"step {2 * EVERY} saved")
        run.process.send_signal(how)
        return run, run.finish()[0]

    def test_the_same_twice(self):
        first, _ = self.run_to_end("first")
        second, _ = self.run_to_end("second")
        self.assertEqual(first.weights(), second.weights())
        self.assertEqual(first.computed_steps(), list(range(1, STEPS + 1)))

    def test_the_same_on_every_machine(self):
        run, _ = self.run_to_end("whole")
        self.assertEqual(hashlib.sha256(run.weights()).hexdigest(), WEIGHTS_SHA256)

    def test_it_learns(self):
        _, out = self.run_to_end("whole")
        accuracy = float(re.search(r"accuracy (\S+)", out).group(1))
        self.assertGreater(accuracy, 0.9)

    def test_a_moved_run_ends_with_the_same_bytes(self):
        whole, out = self.run_to_end("whole")
        digest = hashlib.sha256(whole.weights()).hexdigest()
        self.assertIn(f"weights sha256 {digest}", out)
        for how, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            with self.subTest(how=how):
                name = how.name
                first, first_code = self.interrupt(name, how)
                self.assertEqual(first_code, code)
                self.assertFalse((first.folder / "weights.bin").exists())
                before = len(first.computed_steps())
                saved = int(first.latest().stem.split("-")[1])

                second, _ = self.run_to_end(name, attempt=2, resume_from=first.latest())
                self.assertEqual(second.weights(), whole.weights())
                # Only what came after the checkpoint was computed again.
                self.assertEqual(second.computed_steps()[before:], list(range(saved + 1, STEPS + 1)))

    def test_a_directory_resumes_from_its_latest_complete_checkpoint(self):
        whole, _ = self.run_to_end("whole")
        first, _ = self.interrupt("moved", signal.SIGKILL)
        (first.checkpoints / ".step-00000999.ckpt.tmp").write_text("half a checkp")
        second, out = self.run_to_end("moved", attempt=2, resume_from=first.checkpoints)
        self.assertIn(f"from {first.latest()}", out)
        self.assertEqual(second.weights(), whole.weights())

    def test_save_on_term_saves_and_exits_with_0(self):
        first, code = self.interrupt("moved", signal.SIGTERM, options=("--save-on-term",))
        self.assertEqual(code, 0)
        self.assertEqual(int(first.latest().stem.split("-")[1]), first.computed_steps()[-1])
        second, _ = self.run_to_end("moved", attempt=2, resume_from=first.latest())
        self.assertEqual(second.computed_steps(), list(range(1, STEPS + 1)))

    def test_a_damaged_checkpoint_is_refused(self):
        first, _ = self.run_to_end("whole")
        good = first.latest().read_bytes()
        damaged = self.folder / "step-00000100.ckpt"
        cases = [good[:at] for at in (0, 10, len(good) // 2, len(good) - 2)]
        for at in range(0, len(good) - 1, len(good) // 12):
            cases.append(good[:at] + bytes([good[at] ^ 0x04]) + good[at + 1 :])
        for number, content in enumerate(cases):
            with self.subTest(number=number):
                damaged.write_bytes(content)
                code, _, err = self.start(f"refused-{number}", resume_from=damaged).finish()
                self.assertEqual(code, 1)
                self.assertIn(f"the checkpoint {damaged} is damaged", err)
                self.assertEqual(len(err.splitlines()), 1)

    def test_a_checkpoint_of_another_run_is_refused(self):
        first, _ = self.run_to_end("whole")
        other = self.folder / "other.csv"
        lines = (HERE / "iris.csv").read_text().splitlines()
        other.write_text("\n".join(lines[:-1]) + "\n")
        run = self.start("other", resume_from=first.latest(), options=("--data", str(other)))
        code, _, err = run.finish()
        self.assertEqual(code, 1)
        self.assertIn("belongs to a run with other data or settings", err)

    def test_bad_input_is_answered_in_one_line(self):
        cases = {
            "no data": (("--data", "/nonexistent.csv"), None, "cannot read the data"),
            "no checkpoint": ((), "/nonexistent.ckpt", "cannot read the checkpoint"),
            "empty directory": ((), self.folder, "there is no checkpoint in"),
        }
        for name, (options, resume_from, words) in cases.items():
            with self.subTest(name):
                code, _, err = self.start(name, resume_from=resume_from, options=options).finish()
                self.assertEqual(code, 1)
                self.assertIn(words, err)
                self.assertEqual(len(err.splitlines()), 1)
        code, _, err = self.start("zero", options=("--checkpoint-every", "0")).finish()
        self.assertEqual(code, 2)
        self.assertIn("start at 1", err)

    def test_fleet_is_told_of_each_checkpoint_and_of_the_end(self):
        address = self.folder / "notify.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.bind(str(address))
            channel.settimeout(DEADLINE)
            run, _ = self.run_to_end("told", notify=address)
            told = [channel.recv(4096).decode() for _ in range(STEPS // EVERY + 1)]
        names = [f"step-{step:08}.ckpt" for step in range(EVERY, STEPS + 1, EVERY)]
        expected = [f"CHECKPOINT={run.checkpoints / name}" for name in names]
        self.assertEqual(told, [*expected, "DONE=1"])

    def test_training_goes_on_without_fleet(self):
        run = self.start("alone", notify=self.folder / "nobody.sock")
        code, _, err = run.finish()
        self.assertEqual(code, 0)
        self.assertIn("fleet did not take", err)


class DataTest(unittest.TestCase):
    def test_the_data_is_fishers(self):
        rows = [line.split(",") for line in (HERE / "iris.csv").read_text().splitlines()[1:]]
        tenths = [sum(round(float(row[column]) * 10) for row in rows) for column in range(4)]
        self.assertEqual(tenths, [8765, 4586, 5637, 1799])
        for species in ("setosa", "versicolor", "virginica"):
            self.assertEqual(sum(row[4] == species for row in rows), 50)


if __name__ == "__main__":
    unittest.main()
