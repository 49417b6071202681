//! How long attention takes, forward and back, on one thread, its own way and libtorch's. In the release profile:
//! `cargo test --release -p trainer --lib -- own_way --ignored --nocapture`.

use std::time::Instant;

use super::*;

const ROUNDS: usize = 9;

#[test]
#[ignore = "a measurement, not a check"]
fn own_way_beside_libtorchs_by_width_of_heads() {
    tch::set_num_threads(1);
    for dim in [16, 32, 64, 96, 128] {
        for length in [256, 1024] {
            let case = Case(if length == 256 { 4 } else { 1 }, length, 8, 4, dim);
            let turns = turns(length, dim);
            let (inputs, grad) = (case.inputs(), case.grad());
            let seconds = |attend: Attend<'_>| {
                let began = Instant::now();
                let _ = both_ways(&inputs, &grad, attend);
                began.elapsed().as_secs_f64()
            };
            let theirs: Attend<'_> = &|q, k, v| libtorch(q, k, v, Some(&turns));
            let mut lines = Vec::new();
            for width in Width::found() {
                let ours = with(width, Some(&turns));
                let _ = (seconds(&ours), seconds(theirs));
                let mut rounds: Vec<[f64; 2]> =
                    (0..ROUNDS).map(|_| [seconds(&ours), seconds(theirs)]).collect();
                rounds.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
                let [ours, theirs] = rounds[ROUNDS / 2];
                let ratio = theirs / ours;
                lines.push(format!(
                    "{width:?} {:.2} ms, libtorch {:.2} ms: {ratio:.2}",
                    ours * 1e3,
                    theirs * 1e3
                ));
            }
            println!("heads of {dim}, length {length}: {}", lines.join("; "));
        }
    }
}
