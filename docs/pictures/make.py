#!/usr/bin/env python3
"""Makes the pictures of `fleet status` and `fleet ps` in this folder, for README.md.

Starts a `fleet dev` of 10 nodes with 4 pretended GPUs each, lets a few users run jobs and reserve GPUs there, and draws
what the two commands then print on a terminal of 100 columns. Nothing in a picture is made up. `make pictures` calls it,
as root: docs/pictures/make.py FOLDER-OF-PROGRAMS. It changes nothing outside a temporary folder and this one.
"""

import ctypes
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODES, GPUS = 10, "v100-pcie:4"
COLUMNS, LINES = 100, 60
# From <sched.h>; os.unshare is newer than the Python of Debian 12.
CLONE_NEWNS = 0x00020000
READY_MAX_S, STARTED_MAX_S = 180, 60

USERS = ["ada", "ben", "chen", "dana", "emil"]
FIRST_UID = 2001
# Who runs what: name, GPUs, how many of them.
JOBS = [
    ("ada", "resnet-lr3e-4", 4, 1),
    ("ada", "resnet-lr1e-4", 4, 1),
    ("ben", "whisper-finetune", 2, 2),
    ("chen", "protein-fold", 4, 2),
    ("dana", "eval-checkpoints", 1, 3),
    ("emil", "diffusion-256", 2, 1),
]
# They come last, and wait: no node has so many free GPUs by then.
WAITING = [("ben", "whisper-large", 4), ("dana", "ablation-2", 4)]
# Who reserves: GPUs, from when, for how long, why.
RESERVATIONS = [
    ("chen", 2, "now", "8h", "figures for the paper"),
    ("emil", 4, "now", "5h", "interactive debugging"),
    ("ada", 2, "+3h", "12h", "camera-ready runs"),
]

PICTURES = [("status", ["status"]), ("ps", ["ps", "--everybody"])]

# The terminal's colours by their number in SGR, for a light and a dark page (those of GitHub's own code).
PALETTES = {
    "light": {
        "page": "#ffffff", "frame": "#d1d9e0", "text": "#1f2328", "dim": "#6e7781",
        31: "#cf222e", 32: "#116329", 33: "#7d4e00", 34: "#0969da", 35: "#8250df", 36: "#1b7c83",
        90: "#6e7781", 91: "#a40e26", 92: "#1a7f37", 93: "#633c01", 94: "#218bff", 95: "#a475f9", 96: "#3192aa",
    },
    "dark": {
        "page": "#0d1117", "frame": "#3d444d", "text": "#e6edf3", "dim": "#848d97",
        31: "#ff7b72", 32: "#3fb950", 33: "#d29922", 34: "#58a6ff", 35: "#bc8cff", 36: "#39c5cf",
        90: "#848d97", 91: "#ffa198", 92: "#56d364", 93: "#e3b341", 94: "#79c0ff", 95: "#d2a8ff", 96: "#56d4dd",
    },
}
FONT_SIZE, CELL, LINE, MARGIN = 13, 7.8, 18, 14


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    programs = Path(sys.argv[1]).resolve()
    if os.geteuid() != 0:
        sys.exit("pictures: `fleet dev` needs root")
    with tempfile.TemporaryDirectory(prefix="fleet-pictures-", dir="/var/tmp") as folder:
        folder = Path(folder)
        folder.chmod(0o755)
        own_users(folder)
        with Cluster(programs, folder) as cluster:
            fill(cluster)
            for name, words in PICTURES:
                draw(name, "fleet " + " ".join(words), cluster.on_terminal(words))


def own_users(folder):
    """People of a lab, for this process and what it starts only: mounts of its own hold the lists of users."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for kind, line in [("passwd", "{0}:x:{1}:{1}::{2}:/bin/sh"), ("group", "{0}:x:{1}:")]:
        text = Path("/etc", kind).read_text()
        for number, user in enumerate(USERS):
            home = folder / "home" / user
            home.mkdir(parents=True, exist_ok=True)
            os.chown(home, FIRST_UID + number, FIRST_UID + number)
            text += line.format(user, FIRST_UID + number, home) + "\n"
        (folder / kind).write_text(text)
        subprocess.run(["mount", "--bind", folder / kind, f"/etc/{kind}"], check=True)


class Cluster:
    """A running `fleet dev`."""

    def __init__(self, programs, folder):
        self.fleet = programs / "fleet"
        self.state = folder / "dev"
        self.env = dict(os.environ, FLEET_CONFIG=str(self.state / "fleet.toml"), TERM="xterm-256color")
        self.env.pop("NO_COLOR", None)

    def __enter__(self):
        log = open(self.state.with_suffix(".log"), "w+")
        argv = [self.fleet, "dev", "--nodes", str(NODES), "--controllers", "1", "--gpus", GPUS, "--state", self.state]
        self.dev = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        deadline = time.monotonic() + READY_MAX_S
        while not Path(log.name).read_text().startswith("ready"):
            if self.dev.poll() is not None or time.monotonic() > deadline:
                text = Path(log.name).read_text()
                self.__exit__()
                sys.exit(f"pictures: `fleet dev` is not ready:\n{text}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        if self.dev.poll() is None:
            self.dev.send_signal(signal.SIGINT)
        self.dev.wait(timeout=120)

    def run(self, user, *words):
        """`fleet` as this user, in their own folder."""
        uid = FIRST_UID + USERS.index(user)
        return subprocess.run(
            [self.fleet, *words], env=self.env, cwd=self.state.parent / "home" / user, user=uid, group=uid,
            extra_groups=[], check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def jobs(self, state):
        out = subprocess.run([self.fleet, "ps", "--everybody", "-o", "jsonl"], env=self.env, check=True,
                             stdout=subprocess.PIPE, text=True).stdout
        return sum(f'"state":"{state}"' in line.replace(" ", "") for line in out.splitlines())

    def on_terminal(self, words):
        """What root sees of a command on a terminal of this size."""
        pid, terminal = pty.fork()
        if pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
            os.execve(self.fleet, ["fleet", *words], self.env)
        seen = b""
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # The other side of the terminal is closed.
                part = b""
            if not part:
                break
            seen += part
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0:
            sys.exit(f"pictures: fleet {' '.join(words)} ended with {code}: {seen.decode(errors='replace')}")
        return seen.decode()


def fill(cluster):
    for user, gpus, start, length, why in RESERVATIONS:
        cluster.run(user, "reserve", "-G", str(gpus), "--from", start, "-t", length, "--note", why)
    running = 0
    for user, name, gpus, times in JOBS:
        for _ in range(times):
            cluster.run(user, "run", "-d", "--output", "none", "-G", str(gpus), "-t", "12h", "-J", name, "--", "sleep", "36000")
            running += 1
    deadline = time.monotonic() + STARTED_MAX_S
    while cluster.jobs("running") < running:
        if time.monotonic() > deadline:
            sys.exit("pictures: the jobs do not start\n" + cluster.on_terminal(["ps", "--everybody", "--all"]))
        time.sleep(0.5)
    for user, name, gpus in WAITING:
        cluster.run(user, "run", "-d", "--output", "none", "-G", f"{gpus}", "-t", "6h", "-J", name, "--", "sleep", "36000")
    time.sleep(2)  # The reason why a job waits comes with the scheduler's next plan.


def spans(line):
    """The pieces of a line of one look each: column, text, and the numbers of SGR that hold."""
    now, column = [], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", line):
        if part.startswith("\x1b["):
            if part.endswith("m"):
                # 38;5;9 is the ninth of 16 colours: bright red, 91 in the older way to say it.
                sgr = re.sub(r"38;5;(\d+)", lambda m: str(basic(int(m[1]))), part[2:-1])
                for number in [int(n or 0) for n in sgr.split(";")]:
                    now = [] if number == 0 else [*now, number]
        elif part:
            yield column, part, tuple(now)
            column += len(part)


def basic(colour):
    return 30 + colour if colour < 8 else 82 + colour


def draw(name, command, output):
    lines = [f"$ {command}", *output.replace("\r\n", "\n").rstrip("\n").split("\n")]
    width, height = COLUMNS * CELL + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    for kind, colours in PALETTES.items():
        svg = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}">',
            f"<title>{escape(command)}</title>",
            f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1}" rx="8" fill="{colours["page"]}" stroke="{colours["frame"]}"/>',
            f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="{FONT_SIZE}" xml:space="preserve">',
        ]
        for number, line in enumerate(lines):
            for column, text, look in spans(line):
                if not text.strip():
                    continue
                lead = len(text) - len(text.lstrip(" "))
                column, text = column + lead, text.strip(" ")
                fill_with = colours["text"]
                for code in look:
                    fill_with = colours["dim"] if code == 2 else colours.get(code, fill_with)
                    fill_with = colours["text"] if code == 39 else fill_with
                if number == 0:
                    fill_with = colours["dim"]
                bold = ' font-weight="bold"' if 1 in [code for code in look if code in (1, 22)][-1:] else ""
                x, y = MARGIN + column * CELL, MARGIN + number * LINE + FONT_SIZE
                # The length keeps columns in line, whatever font a reader has.
                svg.append(f'<text x="{x:g}" y="{y}" textLength="{len(text) * CELL:g}" fill="{fill_with}"{bold}>{escape(text)}</text>')
        svg += ["</g>", "</svg>"]
        (HERE / f"{name}-{kind}.svg").write_text("\n".join(svg) + "\n")
        print(HERE / f"{name}-{kind}.svg")


if __name__ == "__main__":
    main()
