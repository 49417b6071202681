//! Sequence parallelism in whole runs: the bits of one process on every mesh, what moves between ranks, and resuming.
//!
//! Of a microbatch's hidden state `H`, a gather of tokens and a sum that leaves each rank its share each move `H · n` to a rank,
//! n = (tp − 1) / tp; an all-reduce moves twice that. Without cut tokens a step all-reduces, for each microbatch: the embedding, two
//! outputs of each layer, two gradients of inputs of each layer, and the head's. With them, each of these is a pair, one half of
//! which is where the next linear begins; and the inputs of a layer's two groups of linears, and of the head, are gathered again for
//! their weights' gradients. What a split backward leaves to its W gathers a layer's two gradients of outputs there once more.

use super::{
    ledger::{SENT, counts},
    *,
};

const CUT: (&str, &str) = ("parallelism.sequence_parallel", "true");

#[test]
fn cut_tokens_train_to_the_bits_of_one_process_on_every_mesh_and_with_every_strategy() {
    let alone = curve("1x1x1", &[CUT, ("exact.virtual_tp", "4")]);
    assert_eq!(alone.len(), 4);
    for (mesh, more) in [
        ("1x1x4", ("fsdp.strategy", "full_shard")),
        ("1x2x2", ("parallelism.schedule", "ZBH1")),
        ("2x1x2", ("fsdp.strategy", "no_shard")),
        ("2x2x4", ("fsdp.strategy", "shard_grad_op")),
        ("2x2x1", ("parallelism.schedule", "ZBVZeroBubble")),
        ("4x1x2", ("parallelism.dp_replicate", "2")),
    ] {
        assert_eq!(curve(mesh, &[CUT, ("exact.virtual_tp", "4"), more]), alone, "{more:?} on {mesh}");
    }
}

#[test]
fn cut_tokens_of_several_sequences_are_cut_within_sequences_too() {
    // Three sequences of ten tokens on two ranks: the second one is on both.
    let odd =
        [CUT, ("training.micro_batch", "3"), ("training.global_batch", "12"), ("training.seq_len", "10")];
    for kind in ["llama", "gpt2"] {
        let run = |mesh| {
            let ran = Place::new().run_model(kind, &[&odd[..], &[("parallelism.mesh", mesh)]].concat());
            ran.summary.unwrap();
            ran.curve
        };
        let alone = run("1x1x1");
        for mesh in ["1x1x2", "2x2x2"] {
            assert_eq!(run(mesh), alone, "{kind} on {mesh}");
        }
    }
}

/// Microbatches of a replica, tokens of each times the width in f32: `H`; layers.
const MICROBATCHES: u64 = 8;
const H: u64 = 16 * 256 * 4;
const LAYERS: u64 = 4;

/// Collectives and bytes of rank 0, of some kinds together.
fn moved(settings: &[(&str, &str)], kinds: &[&'static str]) -> (u64, u64) {
    let counts = counts(settings);
    let of = |kind: &&'static str| counts.get(&(0, *kind)).copied().unwrap_or_default();
    kinds.iter().map(of).fold((0, 0), |(calls, bytes), (more, size)| (calls + more, bytes + size))
}

#[test]
fn pairs_of_sums_and_gathers_move_what_all_reduces_do_and_the_inputs_that_are_gathered_again() {
    for (tp, mesh) in [(2, "1x1x2"), (4, "1x1x4")] {
        let one = H * (tp - 1) / tp;
        let fast = [("parallelism.mesh", mesh), ("training.mode", "fast")];
        let cut = [&fast[..], &[CUT]].concat();
        let reduced = moved(&fast, &["tp embedding", "tp output", "tp input gradient"]);
        let all = MICROBATCHES * (1 + 4 * LAYERS + 1);
        assert_eq!(reduced, (all, 2 * one * all));
        assert_eq!(moved(&fast, &["tp tokens", "tp shares"]), (0, 0));
        // Where tokens are cut, a rank gets its share of each of these sums, and gathers what follows or went before.
        let (shares, gathers, again) = (all, all, MICROBATCHES * (2 * LAYERS + 1));
        assert_eq!(moved(&cut, &["tp shares"]), (shares, one * shares));
        assert_eq!(moved(&cut, &["tp tokens"]), (gathers + again, one * (gathers + again)));
        assert_eq!(moved(&cut, &["tp embedding", "tp output", "tp input gradient"]), (0, 0));
        // Norms: two a layer and the head's, in one message for each part.
        let norms = MICROBATCHES * (2 * LAYERS + 1) * 256 * 4;
        assert_eq!(
            moved(&cut, &["tp gradients of tokens"]),
            (MICROBATCHES * (LAYERS + 1), 2 * norms * (tp - 1) / tp)
        );
    }
}

#[test]
fn exact_sums_that_leave_each_rank_its_share_move_less_than_gathers_of_all_parts() {
    let exact = [("parallelism.mesh", "1x1x4"), ("exact.virtual_tp", "4")];
    let cut = [&exact[..], &[CUT]].concat();
    let all = MICROBATCHES * (1 + 4 * LAYERS + 1);
    let (_, gathered) = moved(&exact, &["tp embedding", "tp output", "tp input gradient"]);
    assert_eq!(gathered, all * 3 * H);
    assert_eq!(moved(&cut, &["tp shares"]), (all, all * H * 3 / 4));
}

#[test]
fn a_boundary_between_stages_carries_one_part_in_tp_of_the_bytes() {
    for (tp, mesh) in [(2, "1x2x2"), (4, "1x2x4")] {
        let fast = [("parallelism.mesh", mesh), ("training.mode", "fast")];
        let sent = |more: &[(&str, &str)]| moved(&[&fast[..], more].concat(), &[SENT]);
        assert_eq!(sent(&[]), (MICROBATCHES, MICROBATCHES * H));
        assert_eq!(sent(&[CUT]), (MICROBATCHES, MICROBATCHES * H / tp));
    }
}

#[test]
fn what_a_split_backward_puts_off_is_gathered_once_more_by_its_w() {
    let fast = [("parallelism.mesh", "1x2x2"), ("training.mode", "fast"), CUT];
    let (gathers, _) = moved(&[&fast[..], &[("parallelism.schedule", "1F1B")]].concat(), &["tp tokens"]);
    let (split, _) = moved(&[&fast[..], &[("parallelism.schedule", "ZBH1")]].concat(), &["tp tokens"]);
    assert!(split > gathers, "{split} and {gathers}");
    // Rank 0 has two layers; the backward of every microbatch is split, or of some: at most two gradients of outputs a layer.
    assert!(split - gathers <= MICROBATCHES * 2 * 2, "{split} and {gathers}");
}

#[test]
fn a_run_with_cut_tokens_goes_on_on_any_mesh_as_if_nothing_had_happened() {
    let whole = curve("1x1x1", &[CUT, ("training.steps", "6"), ("lr_scheduler.decay_steps", "6")]);
    let (place, mut found) = (Place::new(), Vec::new());
    for (mesh, steps) in [("1x2x2", "2"), ("1x1x1", "4"), ("2x1x2", "6")] {
        let ran = place.run(&[
            CUT,
            ("parallelism.mesh", mesh),
            ("training.steps", steps),
            ("lr_scheduler.decay_steps", "6"),
        ]);
        ran.summary.unwrap();
        assert_eq!(ran.warnings, Vec::<String>::new());
        found.extend(ran.curve);
    }
    assert_eq!(found, whole);
}

#[test]
fn in_exact_mode_a_checkpoint_is_gone_on_with_by_the_same_virtual_mesh_alone_and_in_fast_mode_by_any() {
    for (before, after) in [("true", "false"), ("false", "true")] {
        let place = Place::new();
        let with = |cut, steps, more: &[(&'static str, &'static str)]| {
            let own = [
                ("parallelism.sequence_parallel", cut),
                ("training.steps", steps),
                ("parallelism.mesh", "1x1x2"),
            ];
            place.run(&[&own[..], more].concat())
        };
        with(before, "2", &[]).summary.unwrap();
        let error = with(after, "4", &[]).summary.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Incompatible);
        let said = "2 virtual tp ranks that tokens are cut over (sequence parallelism)";
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.hint_text().unwrap().contains("sequence_parallel"), "{error:?}");
        let fast = with(after, "4", &[("training.mode", "fast")]);
        fast.summary.unwrap();
        assert_eq!(fast.curve.len(), 2);
    }
    // With one virtual rank the numbers are the same.
    let place = Place::new();
    let with = |cut, steps| {
        place.run(&[
            ("parallelism.sequence_parallel", cut),
            ("training.steps", steps),
            ("exact.virtual_tp", "1"),
        ])
    };
    with("true", "2").summary.unwrap();
    with("false", "4").summary.unwrap();
}
