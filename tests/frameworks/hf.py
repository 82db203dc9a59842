"""A stock Hugging Face Trainer: it looks for the newest checkpoint itself and never reads FLEET_RESUME_FROM.

stories.py runs it as a job. Beside the checkpoints it writes what disturbs a rule: a log that grows with each step, and
an exported model at the end.
"""

import argparse
import os

import torch
from steplog import StepLog, fingerprint, optimizer_steps, pace
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

VOCABULARY = 64
LENGTH = 16
SAMPLES = 64


class Samples(torch.utils.data.Dataset):
    """The same made-up sentences in each run."""

    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.rows = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Told(TrainerCallback):
    def __init__(self, log, options):
        self.steps, self.options = log, options

    def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
        self.steps.write("begin", step=state.global_step, optimizer=optimizer_steps(optimizer.optimizer))

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.write("step", step=state.global_step)

    # After on_step_end the Trainer saves; here the checkpoint of this step is complete.
    def on_step_begin(self, args, state, control, **kwargs):
        pace(state.global_step, self.options.pace, self.options.hold_at)


class Seen(Trainer):
    """The stock Trainer, which also writes down what it loads."""

    steps = None

    def _load_from_checkpoint(self, path, model=None):
        self.steps.write("loaded", checkpoint=os.path.basename(path))
        return super()._load_from_checkpoint(path, model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-steps", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0)
    parser.add_argument("--hold-at", type=int, default=-1)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    set_seed(7)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        save_steps=options.save_steps,
        save_total_limit=3,
        per_device_train_batch_size=4,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=7,
    )
    log = StepLog(options.log)
    trainer = Seen(GPT2LMHeadModel(config), arguments, train_dataset=Samples(), callbacks=[Told(log, options)])
    trainer.steps = log
    # What the manuals say: True where there is anything, as True alone is an error in an empty directory.
    trainer.train(resume_from_checkpoint=get_last_checkpoint(options.output) is not None)
    trainer.save_model(os.path.join(options.output, "final"))
    log.write("end", weights=fingerprint(trainer.model))


main()
