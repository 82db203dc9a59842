"""The demo's training, as tests/it/stories drives it: with a log of every step, and points at which it waits.

In its working directory,
  * story.log gets a line for what each attempt loads, computes and saves, in the order in which it happens;
  * after step N of attempt A it waits for as long as there is a file `hold-A-N`, or until the stop signal;
  * after such a wait it dies with exit code 1, as of an error of its GPU, where there is a file `crash-A-N`.
With `--forget` FLEET_RESUME_FROM is taken away: it begins from nothing, and ends with the same weights.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))

import train  # noqa: E402

POLL_SECONDS = 0.01
ATTEMPT = os.environ.get("FLEET_ATTEMPT", "1")


class Story:
    """What this attempt tells and waits for."""

    def __init__(self):
        self.log = open("story.log", "a", encoding="ascii", buffering=1)
        self.stop = None

    def tell(self, text):
        self.log.write(f"attempt {ATTEMPT} {text}\n")

    def point(self, step):
        hold = Path(f"hold-{ATTEMPT}-{step}")
        if not hold.exists():
            return
        self.tell(f"waits after {step}")
        while hold.exists() and not self.stop.requested:
            time.sleep(POLL_SECONDS)
        if Path(f"crash-{ATTEMPT}-{step}").exists():
            os._exit(1)


STORY = Story()


class Stop(train.Stop):
    def __init__(self):
        super().__init__()
        STORY.stop = self


class Training(train.Training):
    def advance(self):
        STORY.point(self.step)
        loss = super().advance()
        STORY.tell(f"step {self.step}")
        return loss


def load_checkpoint(training, path, load=train.load_checkpoint):
    path = load(training, path)
    STORY.tell(f"loaded {path.name}")
    return path


def save_checkpoint(training, directory, save=train.save_checkpoint):
    path = save(training, directory)
    STORY.tell(f"saved {path.name}")
    return path


if __name__ == "__main__":
    if "--forget" in sys.argv:
        sys.argv.remove("--forget")
        os.environ.pop("FLEET_RESUME_FROM", None)
    train.Stop, train.Training = Stop, Training
    train.load_checkpoint, train.save_checkpoint = load_checkpoint, save_checkpoint
    sys.exit(train.main())
