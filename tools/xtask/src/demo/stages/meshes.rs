//! One checkpoint, laid out for 64 ranks two ways and for one; fingerprints tell that it stays the same.

use super::super::workplace::Workplace;
use super::{SEALED, recovered};

const LAYOUTS: [(&str, &str); 3] =
    [("mesh-4x2x8", "4x2x8"), ("mesh-8x1x8", "8x1x8"), ("mesh-1x1x1", "1x1x1")];

pub(super) fn reshard(work: &mut Workplace) {
    let [(first, wide), (second, deep), (third, one)] = LAYOUTS;
    let answer = work.ckpt(&["convert", SEALED, first, "--as", "native", "--to", wide, "--config", "run/hf"]);
    work.expect("convert to a native store for 4x2x8", &answer, 0);
    let answer = work.ckpt(&["reshard", first, second, "--from", wide, "--to", deep, "--dry-run"]);
    work.expect("the plan is shown first", &answer, 0);
    let answer = work.ckpt(&["reshard", first, second, "--from", wide, "--to", deep]);
    work.expect("reshard 4x2x8 to 8x1x8", &answer, 0);
    let answer = work.ckpt(&["reshard", second, third, "--from", deep, "--to", one]);
    work.expect("reshard 8x1x8 to 1x1x1", &answer, 0);
    for (folder, mesh) in LAYOUTS {
        work.measure(&format!("native store for {mesh}"), folder);
        let answer = work.ckpt_json(&["verify", folder]);
        work.expect_all_tensors(&format!("{mesh} verifies"), &answer, 0);
        let answer = work.ckpt_json(&["diff", SEALED, folder, "--level", "hash"]);
        let what = format!("all fingerprints of {mesh} are the source's, and no data was read to know");
        work.expect_all_tensors(&what, &answer, 0);
        recovered(work, folder);
    }
    let answer = work.ckpt(&["reshard", first, "refused", "--from", deep, "--to", one]);
    work.expect("a wrong --from is refused with exit code 22", &answer, 22);
    let nothing = !work.folder.join("refused").exists();
    work.report.check("and leaves nothing behind", nothing, "the target exists");
}
