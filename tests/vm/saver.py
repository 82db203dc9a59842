"""A training program that saves as Lightning does: a zip archive, built in memory and then written, never flushed.

`saver.py`          writes each checkpoint in place, as Lightning does on another file system than that of /tmp
`saver.py rename`   writes to another name and renames, as it does on the same one
`saver.py mark`     writes in place; the first attempt, at a save that the test holds, also changes the checkpoint before
`saver.py judge D`  says what is in a directory of checkpoints: one line "name attempt sound|damaged|torn" for each

The folder ~/saver belongs to the test. While a file hold-N is there, the save of step N waits halfway and says so in `held`.
After that it continues slowly. `stop` ends the program. In the first attempt a thread notes in `alive` how far it came, every
few milliseconds: CLOCK_BOOTTIME and chunks written. SIGTERM does not end the program; when it came is noted in `term`.
"""

import io
import os
import signal
import sys
import threading
import time
import zipfile

CHUNK = 32 * 1024
CHUNKS = 100
PAUSE_S = 0.15
NEWEST, NOT_NEWEST = b"the newest one  ", b"not the newest  "
HOME = os.path.expanduser("~/saver")

written = 0


def say(text):
    print(text, flush=True)


def here(name):
    return os.path.join(HOME, name)


def since_boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def note_life():
    with open(here("alive"), "w", buffering=1) as alive:
        while True:
            alive.write("%.3f %d\n" % (since_boot(), written))
            time.sleep(0.02)


def note_signals():
    while True:
        signal.sigwait({signal.SIGTERM})
        with open(here("term"), "a") as term:
            term.write("%.3f\n" % since_boot())


def archive(step, attempt):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", "%d %d" % (step, attempt))
        archive.writestr("archive/data/0", bytes([step % 251]) * (CHUNK * CHUNKS))
        archive.comment = NEWEST
    return data.getvalue()


def judged(path):
    """What a loader would say of a checkpoint: its attempt, and whether each byte of its entries is as it was saved."""
    try:
        with zipfile.ZipFile(path) as archive:
            attempt = archive.read("archive/data.pkl").decode().split()[1]
            return attempt, "sound" if archive.testzip() is None else "damaged"
    except (zipfile.BadZipFile, OSError):
        return "-", "torn %d bytes" % os.path.getsize(path)


def hold(out, step):
    """Waits halfway until the test says so; what is written by then is on the disk, or the server."""
    os.fsync(out)
    open(here("held"), "w").close()
    while os.path.exists(here("hold-%d" % step)):
        time.sleep(0.02)


def save(folder, step, attempt, how):
    global written
    final = os.path.join(folder, "step-%d.ckpt" % step)
    path = os.path.join(folder, ".step-%d" % step) if how == "rename" else final
    held = os.path.exists(here("hold-%d" % step))
    before = None
    if held and how == "mark" and attempt == 1:
        # Opened and read now: later there is no server that would answer.
        before = open(os.path.join(folder, "step-%d.ckpt" % (step - 1)), "r+b", buffering=0)
        before.seek(-len(NEWEST), os.SEEK_END)
        before.read()
    data = archive(step, attempt)
    with open(path, "wb", buffering=0) as out:
        for at in range(0, len(data), CHUNK):
            out.write(data[at : at + CHUNK])
            written += 1
            if held and at // CHUNK == CHUNKS // 2:
                hold(out, step)
                if before is not None:
                    before.seek(-len(NOT_NEWEST), os.SEEK_END)
                    before.write(NOT_NEWEST)
            if held and at // CHUNK > CHUNKS // 2:
                time.sleep(PAUSE_S)
    if path != final:
        os.rename(path, final)
    say("saved step %d" % step)


def train(how):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    folder, attempt = os.environ["FLEET_CHECKPOINT_DIR"], int(os.environ["FLEET_ATTEMPT"])
    for task in (note_life, note_signals) if attempt == 1 else (note_signals,):
        threading.Thread(target=task, daemon=True).start()
    step, resumed = 0, os.environ.get("FLEET_RESUME_FROM")
    if resumed:
        step = int(os.path.basename(resumed)[len("step-") : -len(".ckpt")])
        say("resumes %s of attempt %s, %s" % ((resumed,) + judged(resumed)))
    while not os.path.exists(here("stop")):
        step += 1
        save(folder, step, attempt, how)
        time.sleep(3)


if sys.argv[1:2] == ["judge"]:
    for name in sorted(n for n in os.listdir(sys.argv[2]) if n.endswith(".ckpt")):
        print(name, *judged(os.path.join(sys.argv[2], name)))
else:
    os.makedirs(HOME, exist_ok=True)
    train(sys.argv[1] if len(sys.argv) > 1 else "in place")
