"""Records what real writers do to their files, with every write, as small text traces.

    record.py OUTPUT_DIR [WRITER...]

Needs strace and what requirements.txt and record-requirements.txt list. A line is

    PROCESS EVENT PATH [...]

with the threads and processes numbered as they appear, `/ck` for the checkpoint directory and `/tmp` for $TMPDIR:

    1 mkdir /ck/a        1 open /ck/a/x trunc     1 write /ck/a/x OFFSET LENGTH
    1 rename /ck/a /b    1 truncate /ck/a/x SIZE  1 close /ck/a/x
    1 fsync, unlink, rmdir PATH; link, symlink FROM TO; sendfile PATH OFFSET LENGTH

Where a name ends in `elsewhere`, $TMPDIR is on another file system than the checkpoints. Only calls that succeeded, and only files open for writing. Lines are in the order in which the calls ended.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CALLS = (
    "clone,clone3,mkdir,mkdirat,openat,write,pwrite64,writev,sendfile,close,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "unlink,unlinkat,rmdir,fsync,fdatasync,ftruncate,lseek"
)
WRITER_S = 300
# A file system of its own on each Linux.
ELSEWHERE = "/dev/shm"
TRACE_BYTES_MAX = 65536
LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (\d+)")
UNFINISHED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
FD = re.compile(r"^(\d+)<([^>]*)>")
# A path, and the folder that it is relative to.
QUOTED = re.compile(r'(?:(?:\d+|AT_FDCWD)<([^>]*)>, )?"([^"]*)"')


def whole_lines(lines):
    """Joins the calls during which another thread made one."""
    begun = {}
    for line in lines:
        if match := UNFINISHED.match(line):
            begun[match[1]] = line[: match.end(2)]
        elif match := RESUMED.match(line):
            yield begun.pop(match[1], "") + match[2]
        else:
            yield line


def threads(lines):
    """The process of each thread: threads of one have the same descriptors."""
    processes = {}
    for line in lines:
        match = LINE.match(line)
        if match and match[2] in ("clone", "clone3") and "CLONE_THREAD" in match[3]:
            processes[match[4]] = match[1]

    def process(thread):
        while thread in processes:
            thread = processes[thread]
        return thread

    return process


class Reduction:
    def __init__(self, names, process):
        # Real folder and what stands for it, e.g. /tmp/x/ck and /ck.
        self.names = names
        self.process = process
        self.numbers = {}
        # Where the next write goes, by process and descriptor; only files that are open for writing.
        self.offsets = {}

    def short(self, path):
        for real, name in self.names.items():
            if path == real or path.startswith(real + "/"):
                return name + path[len(real):]
        return None

    def event(self, line):
        """The reduced line, or None where it does not concern the folders."""
        match = LINE.match(line)
        if not match:
            return None
        pid, call, arguments, result = match[1], match[2], match[3], int(match[4])
        if call in BY_PATH:
            text = self.by_path(pid, call, arguments, result)
        else:
            text = self.by_fd(pid, call, arguments, result)
        if text is None:
            return None
        return f"{self.numbers.setdefault(pid, len(self.numbers) + 1)} {text}"

    def by_path(self, pid, call, arguments, result):
        paths = [os.path.join(folder, path) for folder, path in QUOTED.findall(arguments)]
        # What a link contains is not a path of its own.
        last = self.short(paths[-1])
        first = self.short(paths[0]) or (paths[0] if call.startswith("symlink") else None)
        if last is None:
            return None
        if call == "openat":
            if "O_WRONLY" not in arguments and "O_RDWR" not in arguments:
                return None
            self.offsets[self.process(pid), result] = 0
            return f"open {last}" + (" trunc" if "O_TRUNC" in arguments else "")
        if call == "unlinkat" and "AT_REMOVEDIR" in arguments:
            return f"rmdir {last}"
        name = re.sub(r"(at|at2)$", "", call)
        if len(paths) == 1:
            return f"{name} {last}"
        return f"{name} {first or paths[0]} {last}"

    def by_fd(self, pid, call, arguments, result):
        match = FD.match(arguments)
        path = self.short(match[2]) if match else None
        number = (self.process(pid), int(match[1]) if match else -1)
        if path is None or number not in self.offsets:
            return None
        if call == "close":
            del self.offsets[number]
            return f"close {path}"
        if call == "lseek":
            self.offsets[number] = result
            return None
        if call in ("fsync", "fdatasync"):
            return f"fsync {path}"
        if call == "ftruncate":
            return f"truncate {path} {arguments.rsplit(', ', 1)[1]}"
        if call == "pwrite64":
            return f"write {path} {arguments.rsplit(', ', 1)[1]} {result}"
        offset = self.offsets[number]
        self.offsets[number] += result
        return f"{'sendfile' if call == 'sendfile' else 'write'} {path} {offset} {result}"


BY_PATH = {
    "mkdir", "mkdirat", "openat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "rmdir",
}


TWO_RANKS = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--"]


def training(program, launcher=()):
    options = ["--steps", "16", "--save-steps", "4"]
    return lambda folder: [*launcher, str(HERE / program), "--output", folder, "--log", f"{folder}.log", *options]


def saving(name, launcher=()):
    return lambda folder: [*launcher, str(HERE / "writers.py"), name, folder]


# By the name of the trace: the words after the interpreter.
WRITERS = {
    "hf-trainer": training("hf.py"),
    "hf-trainer-two-ranks": training("hf.py", TWO_RANKS),
    "lightning": training("lightning_job.py"),
    "lightning-last": training("lightning_job.py"),
    "lightning-elsewhere": training("lightning_job.py"),
    "torch-dcp-two-ranks": saving("torch-dcp-two-ranks", TWO_RANKS),
    **{name: saving(name) for name in (
        "torch-save", "torch-dcp", "torch-dcp-async", "accelerate", "shards", "orbax", "orbax-async"
    )},
}


def record(name, output):
    elsewhere = ELSEWHERE if name.endswith("-elsewhere") else None
    with (
        tempfile.TemporaryDirectory(prefix="fleet-record-") as place,
        tempfile.TemporaryDirectory(prefix="fleet-record-", dir=elsewhere) as temporary,
    ):
        folder = f"{place}/ck"
        os.mkdir(folder)
        raw = f"{place}/raw"
        command = ["strace", "-f", "-y", "-s", "0", "-o", raw, "-e", f"trace={CALLS}", sys.executable, "-B"]
        environment = {**os.environ, "TMPDIR": temporary}
        if name.endswith("-last"):
            environment["LOOKS_FOR_LAST"] = "1"
        command += WRITERS[name](folder)
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=WRITER_S)
        with open(raw, encoding="utf-8", errors="replace") as text:
            lines = list(whole_lines(line.rstrip() for line in text))
        reduction = Reduction({folder: "/ck", temporary: "/tmp"}, threads(lines))
        events = [event for event in map(reduction.event, lines) if event]
    # Files below $TMPDIR that never come to the checkpoints say nothing.
    text = "\n".join(only_ours(events)) + "\n"
    if len(text) > TRACE_BYTES_MAX or "/ck/" not in text:
        raise SystemExit(f"{name}: a trace of {len(text)} bytes, {TRACE_BYTES_MAX} may be")
    (output / f"{name}.txt").write_text(text, encoding="utf-8")
    print(f"{name}: {len(events)} events")


def only_ours(events):
    moved = {event.split()[2] for event in events if event.split()[1] in ("rename", "link") and " /ck/" in event}
    return [event for event in events if " /ck" in event or event.split()[2] in moved]


def main():
    output = Path(sys.argv[1])
    output.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or WRITERS:
        record(name, output)


if __name__ == "__main__":
    main()
