#!/usr/bin/env python3
"""A small neural network that survives being moved from one machine to another.

This is the training program of fleet's demo, and a model for your own: it needs nothing but
Python 3.9, and everything a job does to live well under fleet is in this file.

  * It saves a checkpoint every so many steps. A checkpoint holds all that the next step depends on:
    weights, optimizer, step number, state of the random numbers.
  * It writes a checkpoint under another name first, and renames it when it is complete and on disk. A
    file with the right name is therefore never half written.
  * It tells fleet about each checkpoint, so that an eviction which waits for one need not wait
    longer. (fleet also sees the file appear; telling it is quicker.)
  * When fleet starts it again elsewhere, it continues from the checkpoint in FLEET_RESUME_FROM.
  * It refuses a checkpoint that is damaged or belongs to another run, instead of training on rubbish.

What it learns: to tell three species of iris apart by four measurements of the flower (iris.csv), with one
hidden layer, by gradient descent with momentum on small random batches.

Its result does not depend on how often it was interrupted, to the last bit. To keep that true from one
machine to the next as well, the mathematics uses only + - * / in a fixed order, which IEEE 754 defines
exactly; exp and tanh come from the C library and may differ in the last bit. That is also why there is
no sum() of floats here: Python 3.12 changed how it rounds.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from pathlib import Path

FEATURES = 4
HIDDEN = 12
SPECIES = ("setosa", "versicolor", "virginica")

BATCH_SIZE = 16
LEARNING_RATE = 0.02
MOMENTUM = 0.9
SEED = 7
PRINT_EVERY = 20

CHECKPOINT_FORMAT = "fleet-demo-checkpoint-1"
EXIT_SIGTERM = 128 + signal.SIGTERM


class Refused(Exception):
    """Something the user gave us cannot be used; the message says what and why."""


# ---------------------------------------------------------------------------------------------
# The data
# ---------------------------------------------------------------------------------------------


def load_samples(path):
    """Reads the CSV file; returns a list of (four measurements around zero, number of the species)."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read the data: {error}") from error
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split(",")
        try:
            rows.append(([float(cell) for cell in cells[:FEATURES]], SPECIES.index(cells[FEATURES])))
        except (ValueError, IndexError) as error:
            raise Refused(f"{path}:{number}: not a row of the iris data: {line!r}") from error
    if not rows:
        raise Refused(f"{path} holds no rows")

    # Scale each measurement from its range to [-1, 1], so that no feature drowns another.
    for feature in range(FEATURES):
        low = min(values[feature] for values, _ in rows)
        high = max(values[feature] for values, _ in rows)
        for values, _ in rows:
            values[feature] = 2.0 * (values[feature] - low) / ((high - low) or 1.0) - 1.0
    return rows


# ---------------------------------------------------------------------------------------------
# The network
# ---------------------------------------------------------------------------------------------


class Network:
    """4 inputs, one hidden layer, 3 outputs: the highest output names the species.

    All weights lie in one flat list, which makes the optimizer and the checkpoint one-liners:
    HIDDEN rows of (4 weights, 1 bias), then 3 rows of (HIDDEN weights, 1 bias).
    """

    OUTPUTS_AT = HIDDEN * (FEATURES + 1)
    SIZE = OUTPUTS_AT + len(SPECIES) * (HIDDEN + 1)

    def __init__(self, generator):
        self.weights = [generator.uniform(-0.5, 0.5) for _ in range(self.SIZE)]
        self.velocity = [0.0] * self.SIZE

    def forward(self, inputs):
        """Returns the values of the hidden layer and of the output layer."""
        hidden = [softsign(self._neuron(row * (FEATURES + 1), inputs)) for row in range(HIDDEN)]
        outputs = [
            self._neuron(self.OUTPUTS_AT + row * (HIDDEN + 1), hidden) for row in range(len(SPECIES))
        ]
        return hidden, outputs

    def _neuron(self, start, inputs):
        total = self.weights[start + len(inputs)]  # The bias comes after the weights.
        for offset, value in enumerate(inputs):
            total += self.weights[start + offset] * value
        return total

    def gradient(self, batch):
        """Returns the mean squared error over a batch, and its derivative by each weight."""
        loss = 0.0
        slope = [0.0] * self.SIZE
        for inputs, species in batch:
            hidden, outputs = self.forward(inputs)
            blame = [0.0] * HIDDEN  # How the loss changes with each hidden value.
            for row, output in enumerate(outputs):
                error = output - (1.0 if row == species else 0.0)
                loss += error * error
                start = self.OUTPUTS_AT + row * (HIDDEN + 1)
                for column, value in enumerate(hidden):
                    slope[start + column] += 2.0 * error * value
                    blame[column] += 2.0 * error * self.weights[start + column]
                slope[start + HIDDEN] += 2.0 * error
            for row, value in enumerate(hidden):
                # The derivative of softsign, written with its result: (1 - |y|) squared.
                steepness = (1.0 - abs(value)) * (1.0 - abs(value))
                start = row * (FEATURES + 1)
                for column, feature in enumerate(inputs):
                    slope[start + column] += blame[row] * steepness * feature
                slope[start + FEATURES] += blame[row] * steepness
        return loss / len(batch), [value / len(batch) for value in slope]

    def descend(self, slope):
        """One step of gradient descent with momentum."""
        for index, value in enumerate(slope):
            self.velocity[index] = MOMENTUM * self.velocity[index] - LEARNING_RATE * value
            self.weights[index] += self.velocity[index]

    def accuracy(self, samples):
        """Returns the share of samples whose species the network names."""
        right = 0
        for inputs, species in samples:
            _, outputs = self.forward(inputs)
            right += outputs.index(max(outputs)) == species
        return right / len(samples)

    def to_bytes(self):
        """The weights as little-endian doubles: the same bytes for the same weights, always."""
        return struct.pack(f"<{self.SIZE}d", *self.weights)


def softsign(value):
    """Squeezes any number into (-1, 1), like tanh, but with a division only."""
    return value / (1.0 + abs(value))


# ---------------------------------------------------------------------------------------------
# One training run: everything that a checkpoint must hold
# ---------------------------------------------------------------------------------------------


class Training:
    """The state of a run. `step` steps are done; the next one depends on nothing outside this object."""

    def __init__(self, samples):
        self.samples = samples
        self.random = random.Random(SEED)
        self.network = Network(self.random)
        self.step = 0

    def advance(self):
        """Does one step and returns the loss on its batch."""
        batch = [self.samples[self.random.randrange(len(self.samples))] for _ in range(BATCH_SIZE)]
        loss, slope = self.network.gradient(batch)
        self.network.descend(slope)
        self.step += 1
        return loss

    def run_id(self):
        """Names data and settings. A checkpoint of another run would load, and quietly train nonsense."""
        settings = [HIDDEN, BATCH_SIZE, LEARNING_RATE, MOMENTUM, SEED, self.samples]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()

    def to_text(self):
        """All state as JSON. Floats survive exactly: Python prints enough digits to read them back."""
        version, words, _ = self.random.getstate()
        return json.dumps(
            {
                "run_id": self.run_id(),
                "step": self.step,
                "weights": self.network.weights,
                "velocity": self.network.velocity,
                "random": [version, list(words)],
            }
        )

    def restore(self, text):
        """The reverse of to_text. Raises Refused for the state of another run."""
        state = json.loads(text)
        if state["run_id"] != self.run_id():
            raise Refused("it belongs to a run with other data or settings")
        self.step = state["step"]
        self.network.weights = state["weights"]
        self.network.velocity = state["velocity"]
        version, words = state["random"]
        self.random.setstate((version, tuple(words), None))


# ---------------------------------------------------------------------------------------------
# Checkpoints
# ---------------------------------------------------------------------------------------------


def save_checkpoint(training, directory):
    """Writes a complete checkpoint or none, whatever happens on the way; returns its path."""
    body = training.to_text()
    checksum = hashlib.sha256(body.encode()).hexdigest()
    path = directory / f"step-{training.step:08}.ckpt"
    unfinished = directory / f".{path.name}.tmp"
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(f"{CHECKPOINT_FORMAT} {checksum}\n{body}\n")
        file.flush()
        os.fsync(file.fileno())  # The content is on disk ...
    os.rename(unfinished, path)  # ... before the name is.
    sync_directory(directory)
    return path


def load_checkpoint(training, path):
    """Restores `training` from a checkpoint file, or from the latest one in a directory."""
    if path.is_dir():
        # The number of the step has eight digits, so the greatest name is the latest checkpoint.
        candidates = sorted(path.glob("step-*.ckpt"))
        if not candidates:
            raise Refused(f"there is no checkpoint in {path}")
        path = candidates[-1]
    try:
        header, _, body = path.read_text(encoding="ascii").partition("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read the checkpoint {path}: {error}") from error
    body = body.rstrip("\n")
    if header != f"{CHECKPOINT_FORMAT} {hashlib.sha256(body.encode()).hexdigest()}":
        raise Refused(f"the checkpoint {path} is damaged: its checksum does not match its content")
    try:
        training.restore(body)
    except Refused as refused:
        raise Refused(f"cannot use the checkpoint {path}: {refused}") from refused
    return path


def sync_directory(directory):
    """Makes a rename in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------------
# Talking to fleet
# ---------------------------------------------------------------------------------------------


def notify(message):
    """Sends one message to fleet. If there is no fleet, or it does not answer, training continues."""
    address = os.environ.get("FLEET_NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)
            channel.sendto(message.encode(), address)
    except OSError as error:
        print(f"train: fleet did not take {message!r}: {error}", file=sys.stderr)


class Stop:
    """Remembers whether SIGTERM came. A flag, so that a checkpoint is never cut in two by a signal."""

    def __init__(self):
        self.requested = False
        # Without a handler SIGTERM would do nothing at all here: in its container this program
        # may be process 1, which the kernel protects from signals that it does not handle.
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number, _frame):
        self.requested = True


# ---------------------------------------------------------------------------------------------
# The program
# ---------------------------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description="Train a small network on the iris data, with checkpoints that fleet can use."
    )
    parser.add_argument("--steps", type=int, default=400, help="steps in all (default 400)")
    parser.add_argument(
        "--checkpoint-every", type=int, default=50, metavar="N", help="save every N steps (default 50)"
    )
    parser.add_argument(
        "--step-seconds", type=float, default=0.0, metavar="S", help="make each step last S seconds"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(__file__).with_name("iris.csv"),
        help="the data set (default: iris.csv beside this program)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where steps.log and weights.bin go (default: beside the directory of the checkpoints)",
    )
    parser.add_argument(
        "--save-on-term",
        action="store_true",
        help="on SIGTERM save a checkpoint and exit with 0, instead of stopping as it stands",
    )
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.checkpoint_every < 1 or not 0 <= options.step_seconds <= 3600:
        parser.error("--steps and --checkpoint-every start at 1, --step-seconds is in 0..3600")
    return options


def describe_surroundings():
    """One line on where this runs, for the reader of the log."""
    job = os.environ.get("FLEET_JOB_ID", "no fleet job")
    attempt = os.environ.get("FLEET_ATTEMPT", "1")
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or "none"
    print(f"{job}, attempt {attempt}, gpus {gpus} (this program computes on the CPU)", flush=True)


def train(options):
    """Runs to the end or to SIGTERM; returns the exit code."""
    stop = Stop()
    describe_surroundings()
    checkpoints = Path(os.environ.get("FLEET_CHECKPOINT_DIR") or "checkpoints").absolute()
    checkpoints.mkdir(parents=True, exist_ok=True)
    results = options.results or checkpoints.parent

    training = Training(load_samples(options.data))
    resume_from = os.environ.get("FLEET_RESUME_FROM")
    if resume_from:
        path = load_checkpoint(training, Path(resume_from))
        print(f"resumed at step {training.step} from {path}", flush=True)

    # Every step that was computed leaves a line, so that one can count what an interruption cost.
    with open(results / "steps.log", "a", encoding="ascii", buffering=1) as steps_log:
        run_steps(training, options, stop, checkpoints, steps_log)

    if training.step < options.steps:
        print(f"stopped by SIGTERM after step {training.step}", flush=True)
        return 0 if options.save_on_term else EXIT_SIGTERM

    weights = training.network.to_bytes()
    (results / "weights.bin").write_bytes(weights)
    print(f"accuracy {training.network.accuracy(training.samples):.3f}")
    print(f"weights sha256 {hashlib.sha256(weights).hexdigest()}", flush=True)
    # Should an eviction race with the end, this says that the work is done and need not be repeated.
    notify("DONE=1")
    return 0


def run_steps(training, options, stop, checkpoints, steps_log):
    """Steps and saves until the last step or SIGTERM."""
    attempt = os.environ.get("FLEET_ATTEMPT", "1")
    while training.step < options.steps and not stop.requested:
        began = time.monotonic()
        loss = training.advance()
        steps_log.write(f"attempt {attempt} step {training.step} loss {loss!r}\n")
        if training.step % PRINT_EVERY == 0:
            print(f"step {training.step} loss {loss:.4f}", flush=True)
        if training.step % options.checkpoint_every == 0:
            save_and_tell(training, checkpoints)
        # sleep() returns only after its time, even when a signal came: sleep in small portions.
        while not stop.requested and (left := began + options.step_seconds - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
    if training.step < options.steps and options.save_on_term:
        save_and_tell(training, checkpoints)


def save_and_tell(training, checkpoints):
    path = save_checkpoint(training, checkpoints)
    print(f"step {training.step} saved as {path.name}", flush=True)
    notify(f"CHECKPOINT={path}")


def main():
    try:
        return train(parse_arguments(sys.argv[1:]))
    except (Refused, OSError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
