//! Pipelines in threads, compared with one stage bit by bit.

use schedule::{Action, Gather, Placement, Program, Shape, Table, generate, lower, named};

use super::{
    single::{self, SCALE, batches},
    tiny::Tiny,
    whole::{Grads, Weights, Whole},
    wire::{Wire, wires},
};
use crate::{
    Result,
    parallel::Params,
    stage::{
        GradReduce, Links, Live, LossSum, PipelineRunner, Recompute, RowOutcome, Stage, StageInputs,
        parts_of_stage,
    },
    transport::Transport,
};

pub(super) const STEP: u64 = 3;
const FIRST: usize = 40;

/// What one rank found.
pub(super) struct Ran {
    pub(super) losses: Vec<LossSum>,
    pub(super) grads: Grads,
    live: Live,
    reduced: usize,
    pub(super) scene: String,
}

pub(super) fn program(name: &str, stages: usize, ranks: usize, microbatches: usize) -> Program {
    let shape = Shape { stages, ranks, microbatches };
    lower(&generate(named(name).unwrap(), shape).unwrap(), Gather::PerPart).unwrap()
}

/// One rank's step, on its own thread.
pub(super) fn rank_step(model: &Tiny, split: &str, program: &Program, wire: &Wire) -> Result<Ran> {
    let weights = Weights::new(model);
    let runtime = Whole::new(&weights);
    let stages = model.stages(split);
    let (rank, peers): (_, Vec<_>) = (wire.rank(), (0..wire.size()).collect());
    let (mut held, keep) = (Vec::new(), Recompute::default());
    for index in program.table().placement.stages_of(rank) {
        let parts = parts_of_stage(model, &stages, index)?;
        let params: &dyn Params = &*weights;
        let (runtime, recompute) = (&runtime, &keep);
        let inputs = StageInputs { index, parts, model, runtime, params, recompute, scale: SCALE };
        held.push(Stage::new(inputs)?);
    }
    let mut batches = batches(program.table().microbatches);
    for batch in &mut batches {
        batch.tokens = batch.tokens.take().filter(|_| held.iter().any(Stage::is_first));
        batch.targets = batch.targets.take().filter(|_| held.iter().any(Stage::is_last));
    }
    let reduce: &dyn GradReduce = &*weights;
    let links = Links { transport: wire, peers: &peers, params: &*weights, reduce };
    let RowOutcome { losses, live, .. } =
        PipelineRunner::run(program, rank, links, held, &batches, (STEP, FIRST))?;
    assert_eq!(runtime.queued(), 0, "weight gradients are left in the queue");
    assert_eq!((live.whole, live.queued), (0, 0));
    let reduced = weights.reduced.borrow().len();
    Ok(Ran { losses, grads: weights.grads.take(), live, reduced, scene: wire.scene() })
}

pub(super) fn pipeline(
    model: &Tiny,
    split: &str,
    programs: &[Program],
    wires: Vec<Wire>,
) -> Vec<Result<Ran>> {
    std::thread::scope(|scope| {
        let ranks = wires.into_iter().zip(programs);
        let start = |(wire, program)| scope.spawn(move || rank_step(model, split, program, &wire));
        let threads: Vec<_> = ranks.map(start).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

fn assert_same_bits(model: &Tiny, split: &str, program: &Program) -> Vec<Ran> {
    assert_same_bits_over(model, split, program, wires(program.table().ranks.len()))
}

pub(super) fn assert_same_bits_over(
    model: &Tiny,
    split: &str,
    program: &Program,
    wires: Vec<Wire>,
) -> Vec<Ran> {
    let alone = single::run(model, program.table().microbatches);
    let programs = vec![program.clone(); wires.len()];
    let ranks: Vec<Ran> = pipeline(model, split, &programs, wires).into_iter().map(Result::unwrap).collect();
    let losses: Vec<_> = ranks.iter().flat_map(|ran| ran.losses.clone()).collect();
    let shifted = alone.losses.iter().map(|loss| LossSum { global: FIRST + loss.global, ..*loss });
    assert_eq!(losses, shifted.collect::<Vec<_>>(), "losses on {split}");
    let mut together = Grads::new();
    for (key, grad) in ranks.iter().flat_map(|ran| &ran.grads) {
        assert!(together.insert(*key, grad.clone()).is_none(), "{key:?} on two ranks");
    }
    assert_eq!(together.len(), alone.grads.len());
    assert!(together == alone.grads, "gradients on {split} differ from those of one stage");
    ranks
}

#[test]
fn gpipe_and_1f1b_on_1_2_and_4_stages_give_the_bits_of_one_stage() {
    for tied in [false, true] {
        let model = Tiny::new(5, tied);
        for split in ["5", "2,3", "1,1,2,1"] {
            let stages = split.split(',').count();
            for (name, microbatches) in [("GPipe", 4), ("1F1B", 4), ("1F1B", 2)] {
                let program = program(name, stages, stages, microbatches);
                for (rank, ran) in assert_same_bits(&model, split, &program).iter().enumerate() {
                    let formula =
                        if name == "GPipe" { microbatches } else { microbatches.min(stages - rank) };
                    assert_eq!(ran.live.peak, formula, "{name} on {stages} stages, rank {rank}");
                    assert_eq!(ran.reduced, 1);
                    let row = program.table().row(rank).iter().map(ToString::to_string);
                    assert_eq!(ran.scene, row.collect::<Vec<_>>().join(" "));
                }
            }
        }
    }
}

#[test]
fn several_stages_on_a_rank_give_the_bits_of_one_stage() {
    let model = Tiny::new(4, false);
    assert_same_bits(&model, "1,1,1,1", &program("GPipe", 4, 2, 3));
    assert_same_bits(&model, "1,1,1,1", &program("GPipe", 4, 1, 3));
}

/// A table whose stages lie so, from its rows.
fn written(of_stage: &[usize], microbatches: usize, rows: &[&str]) -> Program {
    let placement = Placement::new(rows.len(), of_stage.to_vec()).unwrap();
    let row = |row: &&str| row.split(' ').map(|cell| cell.parse().unwrap()).collect();
    let table = Table { placement, microbatches, ranks: rows.iter().map(row).collect() };
    lower(&table, Gather::PerPart).unwrap()
}

#[test]
fn a_turning_point_and_a_loss_on_the_first_rank_need_no_message_and_give_the_bits_of_one_stage() {
    for tied in [false, true] {
        let model = Tiny::new(4, tied);
        let rows = [
            "0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0I1 0W0 0W1",
            "1F0 2F0 1F1 2F1 2I0 1I0 2W0 2I1 1I1 1W0 2W1 1W1",
        ];
        let program = written(&[0, 1, 1, 0], 2, &rows);
        let ranks = assert_same_bits(&model, "1,1,1,1", &program);
        assert_eq!(ranks[0].losses.len(), 2, "rank 0 has the losses");
        assert!(ranks[1].losses.is_empty());
        for ran in &ranks {
            assert_eq!(ran.reduced, 2);
            assert!(!ran.scene.contains("1SEND_F") && !ran.scene.contains("2SEND_B"), "{}", ran.scene);
        }
        assert_eq!(
            ranks[0].live,
            Live { peak: 3, whole_at_peak: 3, peak_whole: 3, peak_queued: 2, ..Live::default() }
        );
    }
}

#[test]
fn a_forward_and_a_backward_in_one_cell_give_the_bits_of_one_after_the_other() {
    let model = Tiny::new(4, false);
    let rows =
        ["0F0 0F1 3F0 3I0 (3F1;0B0)OVERLAP_F_B 3W0 3B1 0B1", "1F0 2F0 1F1 (2F1;2B0)OVERLAP_F_B 1B0 2B1 1B1"];
    let apart = written(&[0, 1, 1, 0], 2, &rows);
    let scene = |program: &Program| assert_same_bits(&model, "1,1,1,1", program)[0].scene.clone();
    // Lowering takes the cell apart; a program of others may have it whole, and its parts still have their turns.
    let mut table = apart.table().clone();
    let at = table.ranks[0].iter().position(|cell| cell.to_string() == "3F1").unwrap();
    assert_eq!(table.ranks[0][at + 1].to_string(), "0B0");
    table.ranks[0].splice(at..at + 2, [Action::overlap((3, 1), (0, 0))]);
    let whole = Program::new(table).unwrap();
    assert_eq!(scene(&whole), scene(&apart));
}

#[test]
fn stages_of_embedding_alone_and_of_the_head_alone_give_the_bits_of_one_stage() {
    let model = Tiny::new(2, true);
    for name in ["GPipe", "1F1B"] {
        assert_same_bits(&model, "0,1,1,0", &program(name, 4, 4, 4));
    }
}

#[test]
fn split_backwards_give_the_bits_of_full_ones() {
    let model = Tiny::new(4, false);
    let mut table = program("1F1B", 2, 2, 3).table().clone();
    table.ranks = ["0F0 0F1 0I0 0F2 0I1 0W1 0I2 0W0 0W2", "1F0 1I0 1F1 1B1 1F2 1W0 1I2 1W2"]
        .map(|row| row.split(' ').map(|cell| cell.parse().unwrap()).collect())
        .to_vec();
    assert_same_bits(&model, "2,2", &lower(&table, Gather::PerPart).unwrap());
}

#[test]
fn weights_that_stay_gathered_give_the_same_bits() {
    let model = Tiny::new(4, false);
    let shape = Shape { stages: 4, ranks: 2, microbatches: 2 };
    let table = generate(named("GPipe").unwrap(), shape).unwrap();
    assert_same_bits(&model, "1,1,1,1", &lower(&table, Gather::Stages(1)).unwrap());
}

#[test]
fn stages_that_are_not_the_programs_are_refused() {
    let model = Tiny::new(4, false);
    let refused = rank_step(&model, "2,2", &program("GPipe", 2, 2, 2), &wires(1)[0]);
    let said = refused.map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("1 peers for a schedule of 2 microbatches on 2 ranks"), "{said}");
    let refused = rank_step(&model, "1,2,1", &program("GPipe", 2, 1, 2), &wires(1)[0]);
    let said = refused.map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("stage 1 of 2 can't have parts"), "{said}");
}
