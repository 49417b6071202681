//! What was trained, in other hands: transformers computes what the trainer computes, and PyTorch's own optimizer holds what ours
//! held.

use super::super::workplace::{TRAINER, Workplace};
use super::{MOVED, STEPS};

const PROMPT: &str = "Redistribution and use in source and binary forms";

pub(super) fn exported(work: &mut Workplace) {
    let store = MOVED.store();
    let [generated, hf, dcp] =
        ["generated.safetensors", "hf", "torch-dcp"].map(|name| format!("{TRAINER}/{name}"));
    let answer =
        work.ckpt_train(&["generate", &store, "--prompt", PROMPT, "--tokens", "24", "--logits", &generated]);
    work.expect("the trainer continues a text", &answer, 0);
    let answer = work.ckpt(&["export", &store, &hf, "--as", "hf", "--names", "hf"]);
    work.expect("export for Hugging Face, names and rotary rows too", &answer, 0);
    let answer = work.python("check_trainer_hf.py", &[&hf, &generated]);
    work.expect("transformers: logits to 1e-5, the same continuation", &answer, 0);
    let answer = work.ckpt(&["convert", &store, &dcp, "--as", "torch-dcp"]);
    work.expect("convert to torch DCP", &answer, 0);
    let answer = work.python("check_trainer_dcp.py", &[&dcp, &store, &STEPS.to_string()]);
    work.expect("torch loads model and optimizer, bit for bit the store's", &answer, 0);
    work.measure("trainer's model for Hugging Face", &hf);
    work.measure("trainer's checkpoint as torch DCP", &dcp);
}
