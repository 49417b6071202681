"""The small Llama that the demo trains: model, mesh, data and training step, shared by training and by resuming.

Nothing here knows about checkpoints. The data of step *n* is a function of the seed and of *n* alone, and every mesh
sees the same global batch, so that a run that goes on from a checkpoint can be compared with the one that wrote it.
"""

import dataclasses
import logging
import os
import sys
import tempfile
import warnings
from importlib.metadata import distribution

import torch
import torch.distributed as dist
import torch.multiprocessing
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20_240_601
BATCH, LENGTH = 8, 64
LAYER_PLAN = {
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Data-parallel and tensor-parallel degrees, written `dp2,tp2`."""

    dp: int
    tp: int

    @classmethod
    def parse(cls, text):
        dp, tp = text.split(",")
        return cls(int(dp.removeprefix("dp")), int(tp.removeprefix("tp")))

    @property
    def size(self):
        return self.dp * self.tp


def config(tied):
    """Sixteen heads, eight KV heads, eight layers: divides over `4x2x8` and over `8x1x8`."""
    return LlamaConfig(
        vocab_size=320,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
    )


def tokenizer():
    """One token per byte, plus three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def text():
    """Real prose that is the same wherever this version of torch is installed: the licence texts it comes with."""
    licences = [f for f in distribution("torch").files if "licenses" in f.parts and "LICENSE" in f.name.upper()]
    parts = {f.locate().read_text(encoding="utf-8", errors="replace"): None for f in sorted(licences)}
    return "\n".join(parts)


class Batches:
    """The global batch of each step."""

    def __init__(self):
        self.tokens = torch.tensor(tokenizer().encode(text()[:200_000], add_special_tokens=False))

    def of_step(self, step):
        generator = torch.Generator().manual_seed(SEED + step)
        starts = torch.randint(len(self.tokens) - LENGTH - 1, (BATCH,), generator=generator)
        return torch.stack([self.tokens[start : start + LENGTH + 1] for start in starts.tolist()])


def unsharded(tied):
    """The model as one process has it, with its initial weights."""
    torch.manual_seed(SEED)
    return LlamaForCausalLM._from_config(config(tied), attn_implementation="sdpa").to(torch.float32)


def sharded(tied, mesh):
    """The model cut by tensor parallelism, then by FSDP2."""
    names = init_device_mesh("cpu", (mesh.dp, mesh.tp), mesh_dim_names=("dp", "tp"))
    model = unsharded(tied)
    for layer in model.model.layers:
        parallelize_module(layer, names["tp"], LAYER_PLAN)
    parallelize_module(
        model,
        names["tp"],
        {
            "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
            "lm_head": ColwiseParallel(output_layouts=Replicate()),
        },
    )
    if tied:  # Cutting replaced the one parameter by two.
        model.lm_head.weight = model.model.embed_tokens.weight
    for layer in model.model.layers:
        fully_shard(layer, mesh=names["dp"])
    fully_shard(model, mesh=names["dp"])
    return model, names


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def train_step(model, optimizer, names, batch):
    """One step on this rank's rows; returns the loss over the global batch."""
    dp = names["dp"]
    rows = batch.chunk(dp.size())[dp.get_local_rank()]
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total, group=dp.get_group())
    return (total / dp.size()).item()


def launch(worker, world_size, *arguments):
    """Run `worker(*arguments)` in `world_size` gloo processes on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/rendezvous"
        torch.multiprocessing.spawn(_enter, (worker, world_size, store, arguments), nprocs=world_size)


def _enter(rank, worker, world_size, store, arguments):
    # The loopback interface by name: a host name that resolves to nothing must not stop a local run.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    exact()
    quiet()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    try:
        worker(*arguments)
        dist.barrier()  # A rank that leaves early makes gloo abort those that still talk to it.
    finally:
        dist.destroy_process_group()


def exact():
    """One thread and deterministic kernels: equal inputs give equal bits."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def quiet():
    """Drop two warnings that torch gives for any HF model under FSDP2 and TP, and that ask nothing of us."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
