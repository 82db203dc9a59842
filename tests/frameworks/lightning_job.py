"""A Lightning Trainer that resumes from FLEET_RESUME_FROM, as docs/job-environment.md says.

stories.py runs it as a job; without the variable it begins at step 0. With LOOKS_FOR_LAST it looks for its last
checkpoint by itself instead.
"""

import argparse
import logging
import os
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from steplog import StepLog, fingerprint, optimizer_steps, pace

# One epoch is as long as the gap between two checkpoints: Lightning does not skip batches within an epoch.
SAMPLES = 16
FEATURES = 8


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch, index):
        features, target = batch
        return torch.nn.functional.mse_loss(self.layers(features), target)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Told(Callback):
    def __init__(self, log, options):
        self.steps, self.options = log, options

    def on_train_start(self, trainer, model):
        self.steps.write("begin", step=trainer.global_step, optimizer=optimizer_steps(trainer.optimizers[0]))

    def on_train_batch_start(self, trainer, model, batch, index):
        pace(trainer.global_step, self.options.pace, self.options.hold_at)

    def on_train_batch_end(self, trainer, model, outputs, batch, index):
        self.steps.write("step", step=trainer.global_step)

    def on_load_checkpoint(self, trainer, model, checkpoint):
        # `last.ckpt` is a link.
        self.steps.write("loaded", checkpoint=os.path.basename(os.path.realpath(trainer.ckpt_path)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-steps", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0)
    parser.add_argument("--hold-at", type=int, default=-1)
    options = parser.parse_args()

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    lightning.seed_everything(7, verbose=False)
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(SAMPLES, FEATURES, generator=generator)
    data = torch.utils.data.TensorDataset(features, features.sum(dim=1, keepdim=True))
    looks = "LOOKS_FOR_LAST" in os.environ
    saver = ModelCheckpoint(
        dirpath=options.output,
        every_n_train_steps=options.save_steps,
        save_top_k=-1,
        save_last="link" if looks else None,
    )
    log = StepLog(options.log)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        callbacks=[Told(log, options), saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=options.output,
    )
    model = Model()
    # In order: each epoch sees the same batches, whichever attempt computes it.
    batches = torch.utils.data.DataLoader(data, batch_size=4, shuffle=False)
    trainer.fit(model, batches, ckpt_path="last" if looks else os.environ.get("FLEET_RESUME_FROM"))
    log.write("end", weights=fingerprint(model))


main()
