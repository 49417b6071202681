//! Sixty-four ranks, as threads of one process: what they save is moved to another mesh, and trained on there, with the numbers
//! of one process that plays eight virtual tensor-parallel ranks alone.

use std::path::Path;
use std::{fs, io};

use super::super::trainer::Run;
use super::super::workplace::Workplace;
use super::{compare, held};

/// Trained on 4x2x8.
const WIDE: Run = Run("wide");
/// Its store, resharded for 8x1x8 and trained on there.
const DEEP: Run = Run("deep");
/// Its own store, trained on directly on 8x1x8.
const DIRECT: Run = Run("direct");
/// One process.
const ALONE: Run = Run("alone");

const STEPS: u64 = 6;
const VIRTUAL: &str = "exact.virtual_tp=8";
const THREADS: &str = "comm.transport=local";

pub(super) fn resharded(work: &mut Workplace) {
    let answer = work.train(WIDE, &[THREADS, VIRTUAL, "parallelism.mesh=4x2x8", "training.steps=3"]);
    work.expect("64 ranks as threads on 4x2x8 train three steps and save", &answer, 0);
    let answer = work.ckpt(&["inspect", &WIDE.store()]);
    work.expect("inspect shows what they saved", &answer, 0);
    let (answer, names) = work.baseline(WIDE, &[VIRTUAL, "parallelism.mesh=4x2x8"]);
    work.expect("every stage has its names, and together they are the unsplit model's", &answer, 0);
    let answer = work.ckpt(&["fqn", "check", &WIDE.store(), "--baseline", &names]);
    work.expect("the checkpoint of 64 ranks has exactly these", &answer, 0);
    let copied = copy(work, &WIDE.store(), &DIRECT.store())
        .and_then(|()| copy(work, &WIDE.metrics(), &DIRECT.metrics()))
        .and_then(|()| copy(work, &WIDE.metrics(), &DEEP.metrics()));
    if let Err(error) = copied {
        work.report.check("the run is copied, logs and all", false, &error.to_string());
        return;
    }
    let answer = work.ckpt(&["reshard", &WIDE.store(), &DEEP.store(), "--from", "4x2x8", "--to", "8x1x8"]);
    work.expect("reshard 4x2x8 to 8x1x8", &answer, 0);
    let answer = work.ckpt(&["verify", &DEEP.store()]);
    work.expect("verify finds it whole", &answer, 0);

    let steps = format!("training.steps={STEPS}");
    let on = [THREADS, VIRTUAL, "parallelism.mesh=8x1x8", "checkpoint.resume=require", &steps];
    let answer = work.train(DEEP, &on);
    work.expect("64 ranks on 8x1x8 go on from the resharded store", &answer, 0);
    let answer = work.train(DIRECT, &on);
    work.expect("and from the store of 4x2x8 itself", &answer, 0);
    let alone = [VIRTUAL, "parallelism.mesh=1x1x1", "checkpoint.interval=0", &steps];
    let answer = work.train(ALONE, &alone);
    work.expect("one process trains the same", &answer, 0);
    for (run, what) in [(DEEP, "resharded"), (DIRECT, "direct")] {
        let answer = compare(work, run, ALONE);
        work.expect(&format!("losses have the bits of one process, {what}"), &answer, 0);
    }
    held(work, "Python readers of the logs say the same", STEPS, DEEP, ALONE);
    work.measure("trainer's store for 4x2x8, a step", &WIDE.store());
}

/// Copies a folder with all that is in it.
fn copy(work: &Workplace, from: &str, to: &str) -> io::Result<()> {
    copy_folder(&work.folder.join(from), &work.folder.join(to))
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
