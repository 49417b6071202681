//! What is promised of comparing, on checkpoints in memory.

use fqn::{Dtype, Fqn};

use super::*;
use crate::{
    Silent,
    engine::testing::{MemSource, Proof, Stored, Whole, grid},
};

fn floats(name: &str, values: &[f32]) -> Whole {
    let mut whole = Whole::new(name, Dtype::F32, &[values.len() as u64]);
    whole.bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    whole
}

fn source(wholes: &[Whole], parts: u64) -> MemSource {
    let cut = |whole: &Whole| grid(&whole.entry.shape, &vec![parts; whole.entry.shape.rank()]);
    let tensors: Vec<_> = wholes.iter().map(|whole| (whole.clone(), cut(whole), Stored::Packed)).collect();
    MemSource::new(&tensors, 2, Proof::Blocks)
}

fn compare(a: &MemSource, b: &MemSource, options: &DiffOptions) -> DiffReport {
    diff(a, b, options, &Silent, &Cancel::new()).unwrap()
}

#[test]
fn one_set_of_values_in_two_layouts_is_moved_at_both_levels() {
    let wholes: Vec<Whole> = [
        Dtype::F8E4M3FN,
        Dtype::BF16,
        Dtype::F16,
        Dtype::F64,
        Dtype::I64,
        Dtype::Bool,
        Dtype::C64,
        Dtype::C128,
    ]
    .iter()
    .map(|dtype| Whole::new(dtype.name(), *dtype, &[60, 70]))
    .collect();
    let (a, b) = (source(&wholes, 1), source(&wholes, 3));
    for level in [Level::Hash, Level::Values] {
        let report = compare(&a, &b, &DiffOptions { level, ..DiffOptions::default() });
        assert!(report.is_same() && report.counts() == BTreeMap::from([(Status::Moved, 8)]), "{report:?}");
        assert_eq!(report.bytes == 0, level == Level::Hash);
        assert_eq!(
            compare(&a, &a, &DiffOptions { level, ..DiffOptions::default() }).counts()[&Status::Identical],
            8
        );
    }
}

#[test]
fn differences_are_measured_and_the_worst_comes_first() {
    let next = f32::from_bits(1_f32.to_bits() + 1);
    let a = source(
        &[floats("near", &[1.0, 2.0]), floats("far", &[3.0, 4.0, 0.0, f32::NAN]), floats("gone", &[1.0])],
        1,
    );
    let b = source(
        &[
            floats("near", &[next, 2.0]),
            floats("far", &[3.0, 0.0, 0.0, f32::INFINITY]),
            floats("new", &[1.0]),
        ],
        2,
    );
    let report = compare(&a, &b, &DiffOptions::default());
    let order: Vec<_> = report.tensors.iter().map(|it| (it.id.to_string(), it.status)).collect();
    let wanted = [
        ("gone", Status::Removed),
        ("new", Status::Added),
        ("far", Status::Changed),
        ("near", Status::Changed),
    ];
    assert_eq!(order, wanted.map(|(name, status)| (name.to_owned(), status)));
    let far = report.tensors[2].stats.unwrap();
    assert_eq!((far.differing, far.first, far.max_abs, far.max_rel, far.l2), (2, Some(1), 4.0, 1.0, 4.0));
    assert_eq!((far.nans, far.infinities, far.rel_l2, far.cosine), ([1, 0], [0, 1], 0.8, Some(0.6)));
    let near = report.tensors[3].stats.unwrap();
    assert_eq!((near.differing, near.beyond_one_ulp), (1, Some(0)));
    assert_eq!(far.beyond_one_ulp, Some(1));
}

#[test]
fn other_names_dtypes_and_shapes_are_told() {
    let a = source(&[floats("a", &[1.0, 2.0]), floats("s", &[1.0, 2.0])], 1);
    let mut half = Whole::new("model.a", Dtype::BF16, &[2]);
    half.bytes = [1.0, 2.0].iter().flat_map(|it| half::bf16::from_f32(*it).to_le_bytes()).collect();
    let b = source(&[half, floats("s", &[1.0, 2.0, 3.0])], 1);
    let renamed = [(TensorId::param("a").unwrap(), TensorId::param("model.a").unwrap())].into();
    let report = compare(&a, &b, &DiffOptions { renamed, ..DiffOptions::default() });
    let [shape, dtype] = report.tensors.as_slice() else { panic!("{report:?}") };
    assert_eq!(shape.kinds, Some(["f32 2".to_owned(), "f32 3".to_owned()]));
    assert_eq!(dtype.renamed.as_ref().unwrap().fqn, Fqn::new("model.a").unwrap());
    assert_eq!((dtype.status, dtype.stats.unwrap().differing), (Status::Changed, 0));
}

#[test]
fn without_fingerprints_nothing_is_called_identical_unread() {
    let mut a = source(&[floats("a", &[1.0])], 1);
    a.catalog.tensors[0].fingerprint = None;
    let options = DiffOptions { level: Level::Hash, ..DiffOptions::default() };
    let report = compare(&a, &a, &options);
    assert_eq!(report.tensors[0].status, Status::Unproven);
    assert!(!report.is_same());
    let none = DiffOptions { roles: Some(HashSet::new()), ..options };
    assert!(compare(&a, &a, &none).tensors.is_empty());
}
