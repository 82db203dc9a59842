"""One small save by each writer, for record.py: what it does is recorded system call by system call.

It must stay as stock as possible; nothing here knows fleet.
"""

import sys

import torch
from torch import nn

WIDTH = 32


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def trained():
    """A model and an optimizer that has a state to save."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    return net, optimizer


def torch_save(folder):
    net, optimizer = trained()
    for step in (1, 2):
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"{folder}/step-{step}.pt")


def torch_dcp(folder):
    import torch.distributed.checkpoint as dcp

    net, _ = trained()
    for step in (1, 2):
        dcp.save({"model": net.state_dict()}, checkpoint_id=f"{folder}/dcp-{step}")


def accelerate(folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.prepare(*trained())
    for step in (1, 2):
        accelerator.save_state(f"{folder}/acc-{step}")


def shards(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(f"{folder}/model", max_shard_size="50KB")


WRITERS = {"torch-save": torch_save, "torch-dcp": torch_dcp, "accelerate": accelerate, "shards": shards}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](sys.argv[2])
