"""Load an exported Hugging Face folder with `transformers` and compare it with what the trainer computed itself.

    check_trainer_hf.py FOLDER GENERATED.safetensors

GENERATED is what `ckpt-train generate --logits` wrote: the prompt's token ids, f32 logits behind each of them, and the
ids of the greedy continuation. Two checks: logits agree to 1e-5 (absolute, or relative to the largest where that is
above 1), so that behind each token the same one is the likeliest, and transformers' own greedy continuation has the same
ids. Exit code 1 and one line if anything differs.
"""

import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-5


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(kind):
            sys.exit(f"transformers reports {kind}: {sorted(map(str, info[kind]))[:5]}")
    return model.eval()


@torch.no_grad()
def greedy(model, prompt, tokens):
    """By the definition, not by `generate`: its stop tokens and defaults are a matter of the exported config."""
    ids = prompt
    for _ in range(tokens):
        logits = model(input_ids=ids[None], use_cache=False).logits[0, -1]
        ids = torch.cat([ids, logits.argmax()[None]])
    return ids[len(prompt):]


def main():
    folder, generated = sys.argv[1:]
    model, ours = load(folder), load_file(generated)
    prompt, wanted, continuation = ours["prompt"], ours["logits"], ours["continuation"]
    if len(prompt) < 2 or len(continuation) < 2:
        sys.exit(f"nothing to compare: {len(prompt)} tokens and {len(continuation)} behind them")
    with torch.no_grad():
        found = model(input_ids=prompt[None], use_cache=False).logits[0]
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        sys.exit(f"logits are {found.dtype}{tuple(found.shape)}, ours {wanted.dtype}{tuple(wanted.shape)}")
    apart = float((found - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
    # Written so that a NaN fails too.
    if not apart <= TOLERANCE:
        sys.exit(f"logits differ by {apart:.1e}, {TOLERANCE:.0e} is allowed")
    if not torch.equal(found.argmax(-1), wanted.argmax(-1)):
        sys.exit("behind some token of the prompt another one is the likeliest")
    theirs = greedy(model, prompt, len(continuation))
    if not torch.equal(theirs, continuation):
        sys.exit(f"continuations differ: {bytes(theirs.tolist())} and {bytes(continuation.tolist())}")
    spread = float(wanted.max() - wanted.min())
    print(f"{found.numel()} logits (they span {spread:.1f}) agree to {apart:.1e}, {len(theirs)} tokens are the same")


if __name__ == "__main__":
    main()
