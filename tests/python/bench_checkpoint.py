"""Write a large torch DCP checkpoint of a Llama's shapes, on `dp2,tp2`, without training it.

    bench_checkpoint.py OUT [--gigabytes 3] [--dtype bfloat16]

OUT-config gets the model's config.json. Weights are random; nothing but the number of layers depends on the size that is asked for.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_llama


def config(gigabytes, dtype):
    shape = LlamaConfig(
        vocab_size=32_000, hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    attention = 2 * 2048 * 2048 + 2 * 2048 * 512
    layer = dtype.itemsize * (attention + 3 * 2048 * 5632)
    ends = dtype.itemsize * 2 * 32_000 * 2048
    shape.num_hidden_layers = max(1, round((gigabytes * 1e9 - ends) / layer))
    return shape


def write(out, gigabytes, dtype):
    names = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = LlamaForCausalLM(config(gigabytes, dtype)).to(dtype)
    for layer in model.model.layers:
        parallelize_module(layer, names["tp"], tiny_llama.LAYER_PLAN)
    ends = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate())}
    parallelize_module(model, names["tp"], ends | {"lm_head": ColwiseParallel(output_layouts=Replicate())})
    for layer in model.model.layers:
        fully_shard(layer, mesh=names["dp"])
    fully_shard(model, mesh=names["dp"])
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=0.02)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=str(out))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    config(given.gigabytes, dtype).save_pretrained(f"{given.out}-config")
    tiny_llama.launch(write, 4, given.out, given.gigabytes, dtype)


if __name__ == "__main__":
    main()
