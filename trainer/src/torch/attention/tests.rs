//! Attention against autograd in double precision, head by head, at widths and lengths that fill no tile.

mod speed;

use proptest::prelude::*;
use tch::Tensor;

use super::{
    lanes::{Lanes, Work},
    *,
};

/// Values in -1..1 that are a function of the seed.
fn noise(shape: &[i64], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(u16::try_from(state >> 48).unwrap()) / 32768.0 - 1.0
    };
    let count = usize::try_from(shape.iter().product::<i64>()).unwrap();
    let values: Vec<f32> = std::iter::repeat_with(next).take(count).collect();
    Tensor::from_slice(&values).view(shape)
}

fn turns(length: i64, dim: i64) -> Tensor {
    let angles = (noise(&[length, 1, dim / 2], 9) * 3.0).to_kind(Kind::Float);
    Tensor::stack(&[angles.cos(), angles.sin()], -1)
}

/// Sequences, length, heads of queries, of keys; width.
#[derive(Debug, Clone, Copy)]
struct Case(i64, i64, i64, i64, i64);

impl Case {
    fn inputs(self) -> [Tensor; 3] {
        let Self(sequences, length, heads, shared, dim) = self;
        [(heads, 1), (shared, 2), (shared, 3)]
            .map(|(heads, seed)| noise(&[sequences, length, heads, dim], seed) * 2.0)
    }

    fn grad(self) -> Tensor {
        let Self(sequences, length, heads, _, dim) = self;
        noise(&[sequences, length, heads, dim], 4)
    }
}

type Attend<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// What comes out, and the gradients of queries, keys and values.
fn both_ways(inputs: &[Tensor; 3], grad: &Tensor, attend: Attend<'_>) -> Vec<Tensor> {
    let leaves = inputs.each_ref().map(|it| it.copy().set_requires_grad(true));
    let [q, k, v] = &leaves;
    let mixed = attend(q, k, v).unwrap();
    let grads = node::grad(&[&mixed], &[grad], &[q, k, v]).unwrap();
    std::iter::once(mixed.detach()).chain(grads.into_iter().map(|grad| grad.unwrap())).collect()
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max().double_value(&[])
}

/// The plain one first, which is always there.
fn widths() -> Vec<Width> {
    [vec![Width::Plain], Width::found()].concat()
}

fn with(width: Width, turns: Option<&Tensor>) -> impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> {
    move |q, k, v| own(width, sizes(q, k, v, turns)?, q, k, v, turns)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn results_and_gradients_are_those_of_double_precision(
        sequences in 1_i64..3,
        length in 1_i64..100,
        shared in 1_i64..3,
        serves in 1_i64..4,
        half in prop::sample::select(vec![1_i64, 3, 8, 12, 20]),
        turned in any::<bool>(),
    ) {
        let case = Case(sequences, length, shared * serves, shared, 2 * half);
        let turns = turned.then(|| turns(length, 2 * half));
        let exact = case.inputs().map(|it| it.to_kind(Kind::Double));
        let expected = both_ways(&exact, &case.grad().to_kind(Kind::Double), &|q, k, v| {
            libtorch(q, k, v, turns.as_ref())
        });
        for width in widths() {
            let found = both_ways(&case.inputs(), &case.grad(), &with(width, turns.as_ref()));
            for (what, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let far = distance(found, expected);
                prop_assert!(far < 2e-5, "{case:?} {width:?}, tensor {what} is off by {far}");
            }
        }
    }
}

#[test]
fn instruction_sets_agree_to_the_bit() {
    for case in [Case(1, 33, 4, 2, 16), Case(2, 64, 2, 2, 24), Case(1, 70, 3, 1, 64), Case(1, 45, 2, 1, 128)]
    {
        let turns = turns(case.1, case.4);
        let all = widths()
            .into_iter()
            .map(|width| both_ways(&case.inputs(), &case.grad(), &with(width, Some(&turns))));
        let all: Vec<_> = all.collect();
        for pair in all.windows(2) {
            assert!(pair[0].iter().zip(&pair[1]).all(|(a, b)| a.equal(b)), "{case:?}");
        }
    }
}

#[test]
fn wide_heads_have_the_results_and_gradients_of_double_precision_too() {
    for dim in [64, 128] {
        let case = Case(1, 100, 4, 2, dim);
        let turns = turns(100, dim);
        let exact = case.inputs().map(|it| it.to_kind(Kind::Double));
        let grad = case.grad().to_kind(Kind::Double);
        let expected = both_ways(&exact, &grad, &|q, k, v| libtorch(q, k, v, Some(&turns)));
        for width in widths() {
            let found = both_ways(&case.inputs(), &case.grad(), &with(width, Some(&turns)));
            for (what, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let far = distance(found, expected);
                assert!(far < 5e-5, "heads of {dim}, {width:?}, tensor {what} is off by {far}");
            }
        }
    }
}

#[test]
fn lanes_that_the_processor_has_not_are_an_error_and_nothing_is_done() {
    struct Notes<'a>(&'a mut usize);
    impl Work for Notes<'_> {
        fn run<L: Lanes, const ROWS: usize>(self) {
            *self.0 = L::COUNT;
        }
    }
    for (width, count) in [(Width::Plain, 16), (Width::Eight, 8), (Width::Sixteen, 16)] {
        let mut done = 0;
        let result = width.run(Notes(&mut done));
        let there = widths().contains(&width);
        assert_eq!((result.is_ok(), done), (there, if there { count } else { 0 }), "{width:?}");
    }
}

#[test]
fn a_head_has_the_same_bits_alone_and_among_others() {
    let case = Case(2, 45, 4, 2, 16);
    let turns = turns(45, 16);
    let attend: Attend<'_> = &|q, k, v| causal(q, k, v, Some(&turns));
    let all = both_ways(&case.inputs(), &case.grad(), attend);
    for half in 0..2 {
        let part = |tensor: &Tensor| {
            let heads = tensor.size()[2] / 2;
            tensor.narrow(2, half * heads, heads).contiguous()
        };
        let alone = both_ways(&case.inputs().map(|it| part(&it)), &part(&case.grad()), attend);
        assert!(all.iter().map(part).zip(&alone).all(|(a, b)| a.equal(b)), "half {half}");
    }
}

#[test]
fn later_positions_change_nothing_before_them() {
    let case = Case(1, 50, 2, 1, 8);
    let [q, k, v] = case.inputs();
    let before = causal(&q, &k, &v, None).unwrap();
    for tensor in [&k, &v] {
        let _ = tensor.narrow(1, 40, 10).fill_(1e4);
    }
    let after = causal(&q, &k, &v, None).unwrap();
    assert!(before.narrow(1, 0, 40).equal(&after.narrow(1, 0, 40)));
    assert!(!before.narrow(1, 40, 10).equal(&after.narrow(1, 40, 10)));
}

#[test]
fn what_is_not_a_number_stays_so() {
    let case = Case(1, 40, 2, 2, 8);
    for at in 0..3 {
        let inputs = case.inputs();
        let _ = inputs[at].narrow(1, 35, 1).fill_(f64::NAN);
        let [q, k, v] = &inputs;
        let mixed = causal(q, k, v, None).unwrap();
        assert!(mixed.narrow(1, 35, 1).isnan().all().int64_value(&[]) == 1, "input {at}");
        let grads = both_ways(&inputs, &case.grad(), &|q, k, v| causal(q, k, v, None));
        assert!(grads[1..].iter().any(|grad| grad.isnan().any().int64_value(&[]) == 1), "input {at}");
    }
}

#[test]
fn other_types_take_libtorchs_way() {
    let [q, k, v] = Case(1, 8, 4, 2, 8).inputs().map(|it| it.to_kind(Kind::Double));
    let mixed = causal(&q, &k, &v, Some(&turns(8, 8))).unwrap();
    assert_eq!((mixed.kind(), mixed.size()), (Kind::Double, vec![1, 8, 4, 8]));
}

#[test]
fn shapes_that_do_not_go_together_are_refused() {
    let [q, k, v] = Case(1, 8, 4, 2, 8).inputs();
    let said = |q: &Tensor, k: &Tensor, v: &Tensor, turns: Option<&Tensor>| {
        causal(q, k, v, turns).unwrap_err().to_string()
    };
    assert!(said(&q, &k, &v.narrow(1, 0, 7), None).contains("attention of queries [1, 8, 4, 8]"));
    assert!(said(&q.narrow(2, 0, 3), &k, &v, None).contains("attention of queries [1, 8, 3, 8]"));
    assert!(said(&q.view([8, 4, 8]), &k, &v, None).contains("attention of queries"));
    assert!(said(&q, &k, &v, Some(&turns(7, 8))).contains("turns [7, 1, 4, 2]"));
}

#[test]
fn nothing_is_attended_to_where_there_is_nothing() {
    let [q, k, v] = Case(0, 8, 4, 2, 8).inputs();
    assert_eq!(causal(&q, &k, &v, None).unwrap().size(), [0, 8, 4, 8]);
}
