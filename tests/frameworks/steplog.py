"""The log that the training programs write step by step, and that stories.py judges.

One JSON object for each line, flushed to the disk before the next step begins: a program that is killed loses none.
It must never decide anything about a checkpoint.
"""

import hashlib
import json
import os
import time


class StepLog:
    """Appends to one file over all attempts of a job."""

    def __init__(self, path):
        self.path = path
        self.attempt = int(os.environ.get("FLEET_ATTEMPT", "1"))

    def write(self, event, **fields):
        line = json.dumps({"attempt": self.attempt, "event": event, **fields})
        with open(self.path, "a", encoding="utf-8") as log:
            log.write(line + "\n")
            log.flush()
            os.fsync(log.fileno())


def optimizer_steps(optimizer):
    """How many updates the optimizer has made by its own count; 0 for a fresh one."""
    counts = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    return max(counts, default=0)


def fingerprint(model):
    """A hash over all weights: equal only where each bit is equal."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def pace(step, seconds, hold_at):
    """Takes the time of a larger model. The first attempt stays at `hold_at`, so that a fault finds it there."""
    time.sleep(seconds)
    if step == hold_at and os.environ.get("FLEET_ATTEMPT") == "1":
        time.sleep(600)
