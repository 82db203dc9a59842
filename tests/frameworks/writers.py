"""One small save by each writer, for record.py: what it does is recorded system call by system call.

It must stay as stock as possible; nothing here knows fleet.
"""

import sys

WIDTH = 32


def model():
    import torch
    from torch import nn

    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def trained():
    """A model and an optimizer that has a state to save."""
    import torch

    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    return net, optimizer


def torch_save(folder):
    import torch

    net, optimizer = trained()
    for step in (1, 2):
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"{folder}/step-{step}.pt")


def torch_dcp(folder):
    import torch.distributed.checkpoint as dcp

    net, _ = trained()
    for step in (1, 2):
        dcp.save({"model": net.state_dict()}, checkpoint_id=f"{folder}/dcp-{step}")


def torch_dcp_async(folder):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net, _ = trained()
    for step in (1, 2):
        dcp.async_save({"model": net.state_dict()}, checkpoint_id=f"{folder}/dcp-{step}").result()


def torch_dcp_two_ranks(folder):
    """Each rank saves its own half of a tensor."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    weights = distribute_tensor(torch.ones(WIDTH, WIDTH), mesh, [Shard(0)])
    for step in (1, 2):
        dcp.save({"weights": weights}, checkpoint_id=f"{folder}/dcp-{step}")
    dist.destroy_process_group()


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


def orbax(folder):
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(folder, options=options) as manager:
        for step in (1, 2, 3):
            manager.save(step, args=ocp.args.StandardSave({"weights": jnp.ones((WIDTH, WIDTH)) * step}))


def orbax_async(folder):
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as writer:
        for step in (1, 2):
            writer.save(f"{folder}/{step}", args=ocp.args.StandardSave({"weights": jnp.ones((WIDTH, WIDTH)) * step}))


WRITERS = {
    "torch-save": torch_save,
    "torch-dcp": torch_dcp,
    "torch-dcp-async": torch_dcp_async,
    "torch-dcp-two-ranks": torch_dcp_two_ranks,
    "accelerate": accelerate,
    "shards": shards,
    "orbax": orbax,
    "orbax-async": orbax_async,
}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](sys.argv[2])
