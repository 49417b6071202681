//! Stacks and members by the engine: bytes against an order of elements that is counted out here, proofs, bounds, refusals.

use std::{num::NonZeroUsize, sync::Arc};

use fqn::{Dtype, Entry, Fqn, Role, Shape, TensorId, stacking::Way};
use proptest::prelude::*;
use reshard::Region;

use super::{Restacked, Step};
use crate::{
    Cancel, Catalog, Committed, Error, ErrorKind, FileId, Finding, Needs, Result, Silent, Source,
    digest::BlockTable,
    engine::{
        CopyPlan, Forecast, Report, RunOptions, run,
        testing::{MemSink, MemSource, Proof, Stored, Whole, grid, plan_of},
    },
};

/// A source in memory that is looked at afterwards.
#[derive(Debug, Clone)]
struct Kept(Arc<MemSource>);

impl Source for Kept {
    fn catalog(&self) -> &Catalog {
        self.0.catalog()
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(file, offset, buf)
    }

    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        self.0.blocks(file)
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        self.0.audit()
    }
}

fn step(way: Way, axis: usize) -> Step {
    Step { way, pair: format!("experts.{{expert}}.w=stack@{axis}").parse().unwrap() }
}

fn member(index: usize, dtype: Dtype, shape: &[u64]) -> Whole {
    Whole::new(&format!("experts.{index}.w"), dtype, shape)
}

/// What numpy's `stack` makes of them.
fn stacked(members: &[Whole], axis: usize) -> Whole {
    let entry = &members[0].entry;
    let width = usize::try_from(entry.dtype.element_bytes().unwrap()).unwrap();
    let inner = usize::try_from(entry.shape[axis..].iter().product::<u64>()).unwrap() * width;
    let outer = usize::try_from(entry.shape[..axis].iter().product::<u64>()).unwrap();
    let rows =
        (0..outer).flat_map(|row| members.iter().map(move |it| &it.bytes[row * inner..(row + 1) * inner]));
    let bytes = rows.flatten().copied().collect();
    let mut shape = entry.shape.to_vec();
    shape.insert(axis, members.len() as u64);
    Whole {
        entry: Entry::new(Fqn::new("stack").unwrap(), entry.role.clone(), entry.dtype, Shape::new(&shape)),
        bytes,
    }
}

fn kept(tensors: &[(Whole, Vec<Region>, Stored)], files: usize, proof: Proof) -> Kept {
    Kept(Arc::new(MemSource::new(tensors, files, proof)))
}

fn shown(source: &Kept, steps: &[Step]) -> Result<Restacked> {
    Restacked::new(Box::new(source.clone()), steps, |_| true)
}

fn options() -> RunOptions {
    RunOptions { max_memory: 16 << 20, threads: NonZeroUsize::new(3).unwrap(), ..RunOptions::default() }
}

fn copied(source: &Restacked, parts: &[u64]) -> Result<(MemSink, CopyPlan, Report)> {
    let cut = |entry: &Entry| grid(&entry.shape, parts).into_iter().zip((0..3).cycle()).collect();
    let plan = plan_of(source.catalog(), source.catalog().registry.entries().iter().map(cut).collect());
    let mut sink = MemSink::new(Needs { crc32: true, blocks: true }, &Arc::default());
    let (_, report): (Committed, _) = run(source, &mut sink, &plan, &options(), &Silent, &Cancel::new())?;
    Ok((sink, plan, report))
}

/// Every chunk that was written is the slice of these tensors.
fn check(sink: &MemSink, plan: &CopyPlan, wholes: &[Whole]) {
    for (at, chunk) in sink.layout.chunks.iter().enumerate() {
        assert_eq!(sink.chunk(at, &plan.spec), wholes[chunk.tensor].region(&chunk.region), "chunk {at}");
    }
}

fn fingerprint(whole: &Whole) -> String {
    let regions = grid(&whole.entry.shape, &vec![1; whole.entry.shape.rank()]);
    let source = MemSource::new(&[(whole.clone(), regions, Stored::Packed)], 1, Proof::Nothing);
    source.catalog.tensors[0].fingerprint.unwrap().to_string()
}

fn arb_stored() -> impl Strategy<Value = Stored> {
    prop::sample::select(vec![Stored::Packed, Stored::Transposed, Stored::Gaps])
}

fn arb_proof() -> impl Strategy<Value = Proof> {
    prop::sample::select(vec![Proof::Nothing, Proof::Blocks, Proof::Records])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_cut_of_a_stack_is_its_slice_and_members_come_back_whatever_the_chunks(
        dtype in prop::sample::select(vec![Dtype::BF16, Dtype::F32, Dtype::U8, Dtype::C128]),
        shape in prop::collection::vec(0_u64..6, 0..4),
        (count, axis) in (1_usize..6, 0_usize..4),
        (from, to) in (prop::collection::vec(1_u64..4, 4), prop::collection::vec(1_u64..4, 5)),
        (stored, proof, files) in (arb_stored(), arb_proof(), 1_usize..4),
    ) {
        let axis = axis.min(shape.len());
        let members: Vec<Whole> = (0..count).map(|at| member(at, dtype, &shape)).collect();
        let stack = stacked(&members, axis);
        let cut = |whole: &Whole| (whole.clone(), grid(&whole.entry.shape, &from), stored);
        // Members, in any order of the file, become the stack.
        let apart: Vec<_> = members.iter().rev().map(cut).collect();
        let source = kept(&apart, files, proof);
        let (sink, plan, report) = copied(&shown(&source, &[step(Way::Stack, axis)]).unwrap(), &to).unwrap();
        check(&sink, &plan, std::slice::from_ref(&stack));
        prop_assert_eq!(report.proven, 1);
        prop_assert_eq!(report.fingerprints[0].1.to_string(), fingerprint(&stack));
        prop_assert!(source.0.most_reads() <= 1);
        // The stack becomes its members.
        let from: Vec<u64> = from.iter().copied().chain([2]).collect();
        let whole = (stack.clone(), grid(&stack.entry.shape, &from), stored);
        let source = kept(&[whole], files, proof);
        let (sink, plan, report) = copied(&shown(&source, &[step(Way::Unstack, axis)]).unwrap(), &to).unwrap();
        check(&sink, &plan, &members);
        prop_assert_eq!(report.proven, count);
        for (member, (_, found)) in members.iter().zip(&report.fingerprints) {
            prop_assert_eq!(found.to_string(), fingerprint(member));
        }
        prop_assert!(source.0.most_reads() <= 1);
    }

    #[test]
    fn stacked_and_taken_apart_again_every_byte_is_where_it_was(
        shape in prop::collection::vec(1_u64..6, 0..3),
        (count, axis) in (1_usize..5, 0_usize..3),
        (from, to) in (prop::collection::vec(1_u64..4, 3), prop::collection::vec(1_u64..4, 3)),
        stored in arb_stored(),
    ) {
        let axis = axis.min(shape.len());
        let members: Vec<Whole> = (0..count).map(|at| member(at, Dtype::F32, &shape)).collect();
        let apart: Vec<_> = members.iter().map(|it| (it.clone(), grid(&it.entry.shape, &from), stored)).collect();
        let source = kept(&apart, 2, Proof::Records);
        let both = shown(&source, &[step(Way::Stack, axis), step(Way::Unstack, axis)]).unwrap();
        let (sink, plan, report) = copied(&both, &to).unwrap();
        check(&sink, &plan, &members);
        prop_assert_eq!(report.proven, count);
    }
}

#[test]
fn experts_of_all_layers_become_one_tensor_of_two_dimensions_more() {
    let shape = [3_u64, 4];
    let name = |layer: u32, expert: u32| format!("l.{layer}.e.{expert}.w");
    let all: Vec<Whole> = (0..2)
        .flat_map(|layer| (0..3).map(move |expert| Whole::new(&name(layer, expert), Dtype::F32, &shape)))
        .collect();
    let tensors: Vec<_> = all.iter().map(|it| (it.clone(), grid(&shape, &[2, 1]), Stored::Packed)).collect();
    let pair = |text: &str| Step { way: Way::Stack, pair: text.parse().unwrap() };
    let steps = [pair("l.{layer}.e.{expert}.w=l.{layer}.w@1"), pair("l.{layer}.w=w@1")];
    let layers: Vec<Whole> = all.chunks(3).map(|members| stacked(members, 1)).collect();
    let whole = stacked(&layers, 1);
    assert_eq!(whole.entry.shape[..], [3, 2, 3, 4]);
    let (sink, plan, report) =
        copied(&shown(&kept(&tensors, 2, Proof::Blocks), &steps).unwrap(), &[2, 2, 2, 2]).unwrap();
    check(&sink, &plan, &[whole]);
    assert_eq!(report.proven, 1);
}

#[test]
fn a_stack_larger_than_memory_is_read_once_both_ways_and_along_any_dimension() {
    let shape = [2048_u64, 512];
    let members: Vec<Whole> = (0..6).map(|at| member(at, Dtype::F32, &shape)).collect();
    for axis in 0..3 {
        let stack = stacked(&members, axis);
        assert!(stack.bytes.len() as u64 > options().max_memory);
        let apart: Vec<_> =
            members.iter().map(|it| (it.clone(), grid(&shape, &[1, 1]), Stored::Packed)).collect();
        let whole = vec![(stack.clone(), grid(&stack.entry.shape, &[2, 1, 1]), Stored::Packed)];
        for (tensors, way, wanted) in
            [(apart, Way::Stack, vec![stack]), (whole, Way::Unstack, members.clone())]
        {
            let source = kept(&tensors, 1, Proof::Blocks);
            let shown = shown(&source, &[step(way, axis)]).unwrap();
            let (sink, plan, report) = copied(&shown, &[1, 1, 1]).unwrap();
            check(&sink, &plan, &wanted);
            let told = format!("{way:?} @{axis}: {report:?}");
            assert!(report.peak_memory <= options().max_memory && report.proven == wanted.len(), "{told}");
            assert!(report.read_amplification <= 1.02, "{told}");
            let forecast = Forecast::of(&plan, shown.catalog(), &options(), u64::MAX).unwrap();
            assert!(report.read_amplification <= forecast.read_amplification * 1.001, "{forecast:?} {told}");
        }
    }
}

#[test]
fn members_that_lie_between_each_other_beyond_the_cache_are_forecast_to_be_read_again() {
    let members: Vec<Whole> = (0..16).map(|at| member(at, Dtype::F32, &[4096, 64])).collect();
    let stack = stacked(&members, 1);
    let source =
        kept(&[(stack.clone(), grid(&stack.entry.shape, &[1, 1, 1]), Stored::Packed)], 1, Proof::Nothing);
    let shown = shown(&source, &[step(Way::Unstack, 1)]).unwrap();
    let (sink, plan, report) = copied(&shown, &[1, 1]).unwrap();
    check(&sink, &plan, &members);
    let forecast = Forecast::of(&plan, shown.catalog(), &options(), u64::MAX).unwrap();
    assert!(report.read_amplification <= forecast.read_amplification, "{forecast:?} {report:?}");
    let enough = RunOptions { max_memory: forecast.enough_memory, ..options() };
    let forecast = Forecast::of(&plan, shown.catalog(), &enough, u64::MAX).unwrap();
    assert!(forecast.read_amplification <= 1.02, "{forecast:?}");
}

#[test]
fn content_that_is_not_what_was_recorded_is_refused_by_the_name_it_was_recorded_under() {
    let members: Vec<Whole> = (0..3).map(|at| member(at, Dtype::F32, &[4, 6])).collect();
    let tensors: Vec<_> =
        members.iter().map(|it| (it.clone(), grid(&[4, 6], &[2, 1]), Stored::Packed)).collect();
    let mut source = MemSource::new(&tensors, 1, Proof::Nothing);
    source.files[0][24 + 96 + 5] ^= 1;
    let shown = shown(&Kept(Arc::new(source)), &[step(Way::Stack, 0)]).unwrap();
    let error = copied(&shown, &[1, 2, 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let told = error.to_string();
    assert!(told.starts_with("experts.1.w: fingerprint") && told.contains("copied to stack"), "{told}");
    // A stack that was recorded, and members that are taken out of it.
    let stack = stacked(&members, 1);
    let mut source =
        MemSource::new(&[(stack, grid(&[4, 3, 6], &[1, 1, 1]), Stored::Packed)], 1, Proof::Nothing);
    source.files[0][30] ^= 1;
    let shown = self::shown(&Kept(Arc::new(source)), &[step(Way::Unstack, 1)]).unwrap();
    let told = copied(&shown, &[1, 1]).unwrap_err().to_string();
    assert!(told.starts_with("stack: fingerprint"), "{told}");
}

#[test]
fn a_cast_or_a_member_without_a_fingerprint_is_not_called_proven() {
    let members: Vec<Whole> = (0..3).map(|at| member(at, Dtype::F32, &[4, 6])).collect();
    let tensors: Vec<_> =
        members.iter().map(|it| (it.clone(), grid(&[4, 6], &[1, 1]), Stored::Packed)).collect();
    let mut source = MemSource::new(&tensors, 1, Proof::Nothing);
    source.catalog.tensors[2].fingerprint = None;
    let shown = shown(&Kept(Arc::new(source)), &[step(Way::Stack, 0)]).unwrap();
    let (_, _, report) = copied(&shown, &[1, 1, 1]).unwrap();
    assert_eq!((report.proven, shown.catalog().lineage.is_proven(0)), (0, false));
}

fn refused(tensors: &[Whole], steps: &[Step]) -> Error {
    let cut =
        |it: &Whole| (it.clone(), grid(&it.entry.shape, &vec![1; it.entry.shape.rank()]), Stored::Packed);
    let tensors: Vec<_> = tensors.iter().map(cut).collect();
    let error = shown(&kept(&tensors, 1, Proof::Nothing), steps).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.hint_text().is_some(), "{error}");
    error
}

#[test]
fn what_makes_no_stack_is_refused_with_what_is_wrong() {
    let one = |at| member(at, Dtype::F32, &[4]);
    let to_stack = [step(Way::Stack, 0)];
    let says = |tensors: &[Whole], text: &str| {
        let told = refused(tensors, &to_stack).to_string();
        assert!(told.contains(text), "{told}");
    };
    says(&[one(0), one(2)], "1 is missing or comes twice");
    says(&[one(0), member(1, Dtype::BF16, &[4])], "differ in shape, dtype");
    says(&[one(0), member(1, Dtype::F32, &[5])], "differ in shape, dtype");
    says(&[Whole::new("other", Dtype::F32, &[4])], "no tensor is called experts.{expert}.w");
    says(&[one(0), one(1), Whole::new("stack", Dtype::F32, &[2, 4])], "stack appears twice");
    let stacks = refused(&[Whole::new("stack", Dtype::F32, &[2, 4])], &to_stack);
    assert!(stacks.hint_text().unwrap().contains("--unstack takes them apart"), "{stacks:?}");
    let far = refused(&[one(0), one(1)], &[step(Way::Stack, 9)]).to_string();
    assert!(far.contains("has no dimension 9 of members"), "{far}");
    let members = refused(&[one(0)], &[step(Way::Unstack, 0)]);
    assert!(members.hint_text().unwrap().contains("--stack makes them one"), "{members:?}");
    let huge =
        refused(&[Whole::new("stack", Dtype::F32, &[1 << 40, 0])], &[step(Way::Unstack, 0)]).to_string();
    assert!(huge.contains("has no dimension 0 of members"), "{huge}");
}

#[test]
fn a_stack_takes_the_step_of_its_members_where_they_all_have_the_same() {
    let slot = |at: usize, value: u8| {
        let mut step = member(at, Dtype::F32, &[]);
        step.entry.role = Role::Slot("step".into());
        step.bytes = vec![0, 0, 0, value];
        step
    };
    let with = |values: [u8; 3]| -> Vec<Whole> {
        let weights = (0..3).map(|at| member(at, Dtype::F32, &[2, 2]));
        weights.chain(values.iter().enumerate().map(|(at, value)| slot(at, *value))).collect()
    };
    let cut =
        |it: &Whole| (it.clone(), grid(&it.entry.shape, &vec![1; it.entry.shape.rank()]), Stored::Packed);
    for recorded in [true, false] {
        let open = |values| {
            let tensors: Vec<_> = with(values).iter().map(cut).collect();
            let mut source = MemSource::new(&tensors, 2, Proof::Nothing);
            source.catalog.tensors.iter_mut().filter(|_| !recorded).for_each(|it| it.fingerprint = None);
            shown(&Kept(Arc::new(source)), &[step(Way::Stack, 0)])
        };
        let same = open([64, 64, 64]).unwrap();
        let id = TensorId { fqn: Fqn::new("stack").unwrap(), role: Role::Slot("step".into()) };
        assert_eq!(same.catalog().registry.get(&id).unwrap().shape.rank(), 0);
        let (_, _, report) = copied(&same, &[1, 1, 1]).unwrap();
        assert_eq!(report.proven, if recorded { 2 } else { 0 });
        let differ = open([64, 65, 64]).unwrap_err();
        assert!(differ.to_string().contains("have different values"), "{differ}");
        assert!(differ.hint_text().unwrap().contains("--only model"));
    }
}

#[test]
fn a_step_of_which_one_is_recorded_and_another_is_not_is_compared_by_its_bytes() {
    let slot = |at: usize, value: u8| {
        let mut step = member(at, Dtype::F32, &[]);
        step.entry.role = Role::Slot("step".into());
        step.bytes = vec![0, 0, 0, value];
        (step, grid(&[], &[]), Stored::Packed)
    };
    let open = |last: u8| {
        let mut source = MemSource::new(&[slot(0, 64), slot(1, 64), slot(2, last)], 1, Proof::Nothing);
        source.catalog.tensors[1].fingerprint = None;
        shown(&Kept(Arc::new(source)), &[step(Way::Stack, 0)])
    };
    assert!(open(64).is_ok());
    assert!(open(65).unwrap_err().to_string().contains("experts.2.w@slot:step have different values"));
}

#[test]
fn steps_that_were_taken_out_of_a_stack_are_compared_before_they_are_stacked_otherwise() {
    let layer = |at: usize, steps: [u8; 2]| {
        let name = format!("l.{at}.stack");
        let mut slot = Whole::new(&name, Dtype::F32, &[2]);
        slot.entry.role = Role::Slot("step".into());
        slot.bytes = steps.iter().flat_map(|step| [0, 0, 0, *step]).collect();
        [(Whole::new(&name, Dtype::F32, &[2, 3]), &[1, 1][..]), (slot, &[1][..])]
            .map(|(whole, parts)| (whole.clone(), grid(&whole.entry.shape, parts), Stored::Packed))
    };
    let open = |second: [u8; 2]| {
        let tensors = [layer(0, [64, 65]), layer(1, second)].concat();
        let pair = |way, text: &str| Step { way, pair: text.parse().unwrap() };
        let steps = [
            pair(Way::Unstack, "l.{layer}.experts.{expert}.w=l.{layer}.stack"),
            pair(Way::Stack, "l.{layer}.experts.{expert}.w=experts.{expert}.w"),
        ];
        shown(&kept(&tensors, 1, Proof::Nothing), &steps)
    };
    assert_eq!(open([64, 65]).unwrap().catalog().registry.len(), 4);
    let error = open([64, 66]).unwrap_err().to_string();
    assert!(
        error.contains("l.0.experts.1.w@slot:step and l.1.experts.1.w@slot:step have different"),
        "{error}"
    );
}

#[test]
fn elements_narrower_than_a_byte_are_stacked_whole_and_not_mixed() {
    let half = |at: usize| {
        let mut whole = member(at, Dtype::U8, &[3, 4]);
        whole.entry = Entry::new(whole.entry.fqn.clone(), Role::Param, Dtype::F4E2M1, Shape::new(&[3, 8]));
        whole
    };
    // The source in memory counts in bytes, so the catalog alone is told of halves.
    let open = |axis: usize| {
        let bytes: Vec<_> = (0..2)
            .map(|at| (member(at, Dtype::U8, &[3, 4]), grid(&[3, 4], &[1, 1]), Stored::Packed))
            .collect();
        let source = MemSource::new(&bytes, 1, Proof::Nothing);
        let mut catalog =
            Catalog { files: source.catalog.files.clone(), ..Catalog::new(source.catalog.format) };
        for (at, tensor) in source.catalog.tensors.iter().enumerate() {
            let mut chunk = tensor.chunks.get(0).unwrap();
            chunk.region = Region::new(&[0, 0], &[3, 8]).unwrap();
            let chunks = crate::Chunks { chunks: vec![chunk].into(), fingerprint: None };
            catalog.push(half(at).entry, chunks).unwrap();
        }
        let source = MemSource { catalog, ..source };
        let shown = shown(&Kept(Arc::new(source)), &[step(Way::Stack, axis)])?;
        copied(&shown, &[1, 1, 1])
    };
    let (sink, plan, _) = open(0).unwrap();
    assert_eq!(sink.chunk(0, &plan.spec), [half(0).bytes, half(1).bytes].concat());
    assert!(open(2).is_err());
}
