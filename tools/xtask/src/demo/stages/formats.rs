//! Leaving again: what other software loads must be what was trained.

use super::super::workplace::Workplace;

pub(super) fn export(work: &mut Workplace) {
    let source = "mesh-1x1x1";
    let answer =
        work.ckpt(&["export", source, "hf", "--as", "hf", "--max-shard-size", "8MB", "--config", "run/hf"]);
    work.expect("export for Hugging Face", &answer, 0);
    work.measure("Hugging Face folder", "hf");
    let answer = work.python("check_hf_logits.py", &["hf", "run", "6"]);
    work.expect("transformers loads it; logits bit-equal to the trained model's", &answer, 0);
    let answer = work.ckpt(&["convert", source, "torch-dcp", "--as", "torch-dcp"]);
    work.expect("convert back to torch DCP", &answer, 0);
    work.measure("torch DCP folder", "torch-dcp");
    let answer = work.python("check_dcp_resume.py", &["torch-dcp", "run", "6", "--mesh", "dp4,tp1"]);
    work.expect("torch goes on from it on dp4,tp1, optimizer too, with the original's loss", &answer, 0);
}
