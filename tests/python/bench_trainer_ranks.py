"""Data parallelism as PyTorch has it, over gloo: FSDP2 (`fully_shard`, a unit for each layer) or DDP; or one process alone."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

ALONE, FSDP, DDP = "alone", "fsdp", "ddp"


class Ranks:
    """This process among those that `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` tell of."""

    def __init__(self, how):
        self.how = how
        self.rank, self.world = 0, 1
        if how != ALONE:
            dist.init_process_group("gloo")
            self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def share_out(self, model):
        """The model to call, and the one whose parameters are optimized."""
        if self.how == FSDP:
            mesh = init_device_mesh("cpu", (self.world,))
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        called = DistributedDataParallel(model) if self.how == DDP else model
        return called, model

    def leave(self):
        if self.how != ALONE:
            dist.barrier()  # A rank that leaves early makes gloo abort those that still talk to it.
            dist.destroy_process_group()


def clip(parameters, most):
    """Scales gradients down to this norm: over all ranks, where they are sharded."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads, error_if_nonfinite=False)
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    if not torch.isfinite(norm):
        raise RuntimeError(f"the norm of the gradients is {norm.item()}")
    torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)


def quiet():
    """The loopback interface by name: a host name that resolves to nothing must not stop a local run."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
