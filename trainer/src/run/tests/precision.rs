//! bf16 products on f32 masters: the same bits on every mesh in exact mode, close to f32, checkpoints in f32.

use super::*;

const BF16: (&str, &str) = ("training.mixed_precision_param", "bfloat16");

#[test]
fn exact_mode_has_the_same_bits_on_every_mesh_and_with_every_strategy_in_bf16_too() {
    let alone = curve("1x1x1", &[BF16]);
    assert_eq!(alone.len(), 4);
    assert_ne!(alone, curve("1x1x1", &[]), "products are rounded");
    for (mesh, more) in [
        ("2x1x1", ("fsdp.strategy", "full_shard")),
        ("1x1x2", ("fsdp.strategy", "full_shard")),
        ("2x2x2", ("fsdp.strategy", "shard_grad_op")),
        ("4x1x2", ("parallelism.dp_replicate", "2")),
        ("4x2x1", ("fsdp.strategy", "no_shard")),
    ] {
        assert_eq!(curve(mesh, &[BF16, more]), alone, "{more:?} on {mesh}");
    }
}

#[test]
fn losses_in_bf16_are_finite_close_to_those_in_f32_and_masters_are_f32() {
    let run = |more: &[(&str, &str)]| {
        let place = Place::new();
        let steps = [("training.steps", "12"), ("training.mode", "fast"), ("parallelism.mesh", "2x1x1")];
        let ran = place.run(&[&steps[..], more].concat());
        ran.summary.unwrap();
        let losses: Vec<f32> = ran.curve.iter().map(|(_, bits)| f32::from_bits(*bits)).collect();
        (losses, weights(&place))
    };
    let (exact, _) = run(&[]);
    for more in [&[BF16][..], &[BF16, ("training.mixed_precision_reduce", "bfloat16")]] {
        let (losses, weights) = run(more);
        let apart = losses.iter().zip(&exact).map(|(a, b)| (a - b).abs() / b).fold(0.0, f32::max);
        println!("{more:?}: apart by {apart:e}");
        assert!(losses.iter().all(|loss| loss.is_finite()) && apart < 2e-3, "{losses:?} {exact:?}");
        assert!(losses[11] < losses[0], "it learns: {losses:?}");
        // A master has bits that bf16 lacks.
        assert!(weights.values().flatten().any(|value| value.to_bits() & 0xffff != 0));
    }
}

#[test]
fn gradients_exchanged_in_bf16_are_refused_in_exact_mode() {
    let ran = Place::new().run(&[("training.mixed_precision_reduce", "bf16")]);
    let error = ran.summary.unwrap_err().to_string();
    assert!(error.contains("mixed_precision_reduce=bfloat16 in exact mode"), "{error}");
}
