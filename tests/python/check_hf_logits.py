"""Load an exported Hugging Face folder with `transformers` and compare its logits with the reference, bit for bit.

    check_hf_logits.py FOLDER REFERENCE_DIR STEP

REFERENCE_DIR is what `demo_train.py` wrote. Exit code 1 and one line if anything differs.
"""

import argparse
import sys
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny_llama


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("step", type=int)
    given = parser.parse_args()

    tiny_llama.exact()
    model, info = AutoModelForCausalLM.from_pretrained(
        given.folder, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(kind):
            sys.exit(f"transformers reports {kind}: {sorted(map(str, info[kind]))[:5]}")

    prompt = torch.from_numpy(numpy.load(given.reference / "prompt.npy"))
    wanted = numpy.load(given.reference / f"logits-step-{given.step}.npy")
    with torch.no_grad():
        found = model.eval()(input_ids=prompt, use_cache=False).logits.numpy()
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        sys.exit(f"logits are {found.dtype}{found.shape}, the reference is {wanted.dtype}{wanted.shape}")
    unequal = int((found.view(numpy.uint32) != wanted.view(numpy.uint32)).sum())
    if unequal:
        worst = float(numpy.abs(found - wanted).max())
        sys.exit(f"{unequal} of {found.size} logits differ from the trained model's, by up to {worst:.3e}")
    if (given.folder / "tokenizer.json").exists():
        sample = "Redistribution and use"
        tokens = AutoTokenizer.from_pretrained(given.folder)(sample, add_special_tokens=False)["input_ids"]
        if tokens != tiny_llama.tokenizer()(sample, add_special_tokens=False)["input_ids"]:
            sys.exit("the exported tokenizer gives other tokens")
    print(f"{found.size} logits bit-equal to the trained model's at step {given.step}")


if __name__ == "__main__":
    main()
