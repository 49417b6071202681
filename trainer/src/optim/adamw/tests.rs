//! Shards against whole tensors, and both against torch's own optimizer.

use std::io::Write;

use proptest::prelude::*;
use tch::Kind;

use super::*;
use crate::init::Normals;

const STEPS: u64 = 3;

fn flat(name: &str, length: usize) -> Vec<f32> {
    let mut values = Vec::new();
    Normals::new(5, name, 0.02).extend(&mut values, 0, length as u64);
    values
}

/// Values, padded as shards are.
fn padded(values: &[f32]) -> Tensor {
    let length = values.len().next_multiple_of(usize::try_from(ALIGNMENT).unwrap());
    let mut whole = values.to_vec();
    whole.resize(length, 0.0);
    Tensor::from_slice(&whole)
}

fn gradient(step: u64, length: usize) -> Vec<f32> {
    flat(&format!("gradient {step}"), length)
}

/// Weights and moments of elements `range` of a tensor after some steps.
fn trained(length: usize, range: std::ops::Range<usize>, fused: bool) -> [Vec<f32>; 3] {
    let optimizer = AdamW { fused, ..AdamW::default() };
    let param = padded(&flat("param", length)[range.clone()]);
    let (exp_avg, exp_avg_sq) = (param.zeros_like(), param.zeros_like());
    for step in 1..=STEPS {
        let grad = padded(&gradient(step, length)[range.clone()]);
        let slices = Slices { param: &param, exp_avg: &exp_avg, exp_avg_sq: &exp_avg_sq, grad: &grad };
        optimizer.update(&slices, step, 1e-3, true).unwrap();
    }
    [param, exp_avg, exp_avg_sq].map(|tensor| {
        let values = Vec::<f32>::try_from(tensor).unwrap();
        assert!(values[range.len()..].iter().all(|value| *value == 0.0), "padding stays zero");
        values[..range.len()].to_vec()
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn shards_of_any_size_are_updated_to_the_bits_of_the_whole_tensor(
        length in prop_oneof![1_usize..300, 30_000_usize..90_000],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        fused in any::<bool>(),
    ) {
        let whole = trained(length, 0..length, fused);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(length)).collect();
        ends.push(length);
        ends.sort_unstable();
        let mut start = 0;
        for end in ends {
            for (shard, whole) in trained(length, start..end, fused).iter().zip(&whole) {
                prop_assert_eq!(bits(shard), bits(&whole[start..end]));
            }
            start = end;
        }
    }
}

// Not a multiple of any vector, and long enough that torch would use several threads; torch is given one, as its own
// bits depend on where threads divide a tensor.
const LENGTH: usize = 70_013;

/// What torch's own AdamW makes of the same weights and gradients: weights and moments, one after the other.
fn of_torch(fused: bool) -> Vec<f32> {
    let script = r#"
import sys, struct, torch
torch.set_num_threads(1)
read = lambda: torch.frombuffer(bytearray(sys.stdin.buffer.read(4 * n)), dtype=torch.float32).clone()
n, steps = struct.unpack("<QQ", sys.stdin.buffer.read(16))
aligned = -(-n // 64) * 64
pad = lambda t: torch.nn.functional.pad(t, (0, aligned - n))
param = torch.nn.Parameter(pad(read()))
fused = sys.argv[1] == "fused"
adam = torch.optim.AdamW([param], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False, fused=fused)
for _ in range(steps):
    param.grad = pad(read())
    adam.step()
state = adam.state[param]
for t in (param.detach(), state["exp_avg"], state["exp_avg_sq"]):
    sys.stdout.buffer.write(t[:n].numpy().tobytes())
"#;
    let mut input = Vec::new();
    input.extend((LENGTH as u64).to_le_bytes());
    input.extend(STEPS.to_le_bytes());
    input.extend(flat("param", LENGTH).iter().flat_map(|value| value.to_le_bytes()));
    for step in 1..=STEPS {
        input.extend(gradient(step, LENGTH).iter().flat_map(|value| value.to_le_bytes()));
    }
    let mut python = fixtures::python();
    python.args(["-c", script, if fused { "fused" } else { "single" }]);
    python.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = python.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn updates_are_bit_equal_to_those_of_torch() {
    for fused in [false, true] {
        let (ours, theirs) = (trained(LENGTH, 0..LENGTH, fused).concat(), of_torch(fused));
        assert_eq!(ours.len(), theirs.len());
        let differing = ours.iter().zip(&theirs).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(differing, 0, "of {} elements, fused: {fused}", ours.len());
    }
}

#[test]
fn the_single_tensor_form_and_the_fused_one_are_within_a_millionth_of_each_other() {
    let (single, theirs) = (trained(LENGTH, 0..LENGTH, false).concat(), of_torch(true));
    let pairs = single.iter().zip(&theirs).map(|(a, b)| (a - b).abs());
    let worst = pairs.fold(0.0, f32::max);
    println!("furthest apart: {worst:e}");
    assert!(worst <= 1e-6, "{worst:e}");
    assert!(single != theirs, "they are two forms");
}

#[test]
fn parameters_without_decay_and_ranges_that_are_not_aligned() {
    let zeros = Tensor::zeros([64], (Kind::Float, Device::Cpu));
    let param = Tensor::ones([64], (Kind::Float, Device::Cpu));
    let update = |param: &Tensor, grad: &Tensor, decayed| {
        let (exp_avg, exp_avg_sq) = (zeros.copy(), zeros.copy());
        let slices = Slices { param, exp_avg: &exp_avg, exp_avg_sq: &exp_avg_sq, grad };
        AdamW::default().update(&slices, 1, 0.5, decayed)
    };
    update(&param, &zeros, false).unwrap();
    assert_eq!(param.double_value(&[0]), 1.0);
    update(&param, &zeros, true).unwrap();
    assert!((param.double_value(&[0]) - 0.95).abs() < 1e-6);
    let error = update(&param.narrow(0, 0, 63), &zeros.narrow(0, 0, 63), true).unwrap_err();
    assert!(error.to_string().contains("63 elements"), "{error}");
    assert!(update(&param, &zeros.reshape([8, 8]), true).is_err());
}

#[test]
fn hyper_parameters_outside_their_range_are_refused() {
    assert!(AdamW::default().check().is_ok());
    assert!(AdamW { beta2: 1.0, ..AdamW::default() }.check().is_err());
    assert!(AdamW { eps: -1.0, ..AdamW::default() }.check().is_err());
    assert!(AdamW { decay: f64::INFINITY, ..AdamW::default() }.check().is_err());
}
