//! The quick part of the matrix, peaks of live activations, fast mode's tolerance; and that evidence tells differences.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use reshard::Region;

use super::{evidence::Whole, *};
use crate::{Result, exact::FAST_LOSS, transport::Limits};

/// Gradients of fast mode may differ by this share of a parameter's largest one, between meshes.
const FAST_GRADIENT: f64 = 1e-5;

fn limits() -> Limits {
    Limits { start: Duration::from_secs(60), step: Duration::from_secs(60), ..Limits::default() }
}

fn ran(place: Place<'_>, case: &Case) -> Result<Evidence> {
    evidence(&case.job(place)?, &limits())
}

/// What one process computes, run once for all cells that are compared with it.
#[derive(Default)]
struct References(BTreeMap<String, Rc<Evidence>>);

impl References {
    fn of(&mut self, place: Place<'_>, case: &Case) -> Rc<Evidence> {
        let reference = case.reference();
        let run = || Rc::new(ran(place, &reference).unwrap_or_else(|error| panic!("{reference}: {error}")));
        Rc::clone(self.0.entry(reference.to_string()).or_insert_with(run))
    }
}

#[test]
fn cut_tokens_and_bf16_have_other_numbers_than_f32_on_whole_ones() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place(folder.path());
    place.prepare().unwrap();
    let mut alone = References::default();
    let plain = alone.of(place, &case("1F1B", 2, &[]));
    for (key, value) in
        [("parallelism.sequence_parallel", "true"), ("training.mixed_precision_param", "bf16")]
    {
        let other =
            alone.of(place, &case("1F1B", 2, &[(key, value), ("activation_checkpoint.mode", "full")]));
        assert!(!plain.differs(&other).is_empty(), "{key}");
    }
    assert_eq!(alone.0.len(), 3, "what is computed again changes nothing");
}

fn case(schedule: &'static str, pp: usize, more: &[(&'static str, &'static str)]) -> Case {
    let more = more.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    Case { schedule, pp, more, ..Case::alone("llama") }
}

#[test]
fn every_schedule_gives_the_losses_and_gradients_of_one_process_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place(folder.path());
    place.prepare().unwrap();
    let mut alone = References::default();
    let [one, other] = MODELS.map(|model| alone.of(place, &Case::alone(model)));
    assert_eq!(one.losses.len(), 2);
    assert!(one.differs(&other).len() > 10, "two models are not the same");
    for case in quick() {
        let found = ran(place, &case).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(found.differs(&alone.of(place, &case)), Vec::<String>::new(), "{case}");
        assert!(found.rows.values().all(|row| row.staleness() == 0), "{case}");
    }
}

/// What the literature says that a rank holds at most, of `ranks` with `microbatches`: in activations of the whole rank; and how
/// much of it is whole, where it says that.
fn formula(schedule: &str, ranks: usize, rank: usize, microbatches: usize) -> (f64, Option<f64>) {
    let count = |it: usize| f64::from(u32::try_from(it).unwrap());
    let (p, r, m) = (count(ranks), count(rank), count(microbatches));
    match schedule {
        "GPipe" | "LoopedBFS" | "LoopedBFSReversed" => (m, Some(m)),
        "1F1B" => (m.min(p - r), Some(m.min(p - r))),
        "Interleaved1F1B" => ((p + 2.0 * (p - 1.0 - r) + 1.0) / 2.0, None),
        "ZBH1" => (p, Some(p - r)),
        "ZBH2" => (2.0 * p - 1.0, Some(2.0 * p - 1.0 - 2.0 * r)),
        "InterleavedZeroBubble" | "ZBVZeroBubble" => (p, None),
        "VMin" => (((p + 4.0) / 3.0).floor() - if (ranks % 3, rank) == (2, 0) { 0.5 } else { 0.0 }, None),
        "VHalf" => (((p + 2.0) / 2.0).floor(), None),
        "DualPipeV" => (p + 0.5, None),
        other => panic!("no formula for {other}"),
    }
}

#[test]
fn live_activations_of_the_running_trainer_peak_where_the_formulas_say() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place(folder.path());
    place.prepare().unwrap();
    for schedule in schedule::known() {
        for ranks in [2, 4] {
            let found = ran(place, &case(schedule, ranks, &[])).unwrap();
            for rank in 0..ranks {
                let row = &found.rows[&(1, rank)];
                let (peak, whole) = formula(schedule, ranks, rank, GLOBAL_BATCH);
                let (live, own) = (row.of_rank(row.live.peak), row.of_rank(row.live.whole_at_peak));
                println!("{schedule} rank {rank} of {ranks}: {live} live, {own} whole; {peak}, {whole:?}");
                assert!((live - peak).abs() < 1e-9, "{schedule} rank {rank} of {ranks}: {live}, not {peak}");
                assert!(
                    whole.is_none_or(|whole| (own - whole).abs() < 1e-9),
                    "{schedule} rank {rank}: {own}"
                );
                assert_eq!((row.live.whole, row.live.queued), (0, 0));
            }
        }
    }
}

#[test]
fn fast_mode_stays_within_its_tolerance_on_every_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place(folder.path());
    place.prepare().unwrap();
    let fast = [("training.mode", "fast")];
    let alone = ran(place, &case("GPipe", 1, &fast)).unwrap();
    for schedule in schedules() {
        let found = ran(place, &Case { dp: 2, tp: 2, ..case(schedule, 2, &fast) }).unwrap();
        let (loss, gradient) = found.apart(&alone).unwrap();
        println!("{schedule}: losses apart by {loss:e}, gradients by {gradient:e}");
        assert!(loss <= FAST_LOSS, "{schedule}: losses apart by {loss:e}");
        assert!(gradient <= FAST_GRADIENT, "{schedule}: gradients apart by {gradient:e}");
    }
    // One rank owns all tokens: it is the same process.
    let cut = [fast[0], ("parallelism.sequence_parallel", "true")];
    for (schedule, dp) in [("1F1B", 2), ("ZBVZeroBubble", 1)] {
        let found = ran(place, &Case { dp, tp: 4, ..case(schedule, 2, &cut) }).unwrap();
        let (loss, gradient) = found.apart(&alone).unwrap();
        println!("{schedule}, cut tokens: losses apart by {loss:e}, gradients by {gradient:e}");
        assert!(loss <= FAST_LOSS && gradient <= FAST_GRADIENT, "{schedule}: {loss:e}, {gradient:e}");
    }
}

#[test]
fn a_run_with_layers_that_are_computed_again_says_what_its_split_can_put_off() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place(folder.path());
    place.prepare().unwrap();
    let shares = |queue| {
        let more = [("activation_checkpoint.mode", "full"), ("activation_checkpoint.queue", queue)];
        let job = case("ZBH1", 2, &more).job(place).unwrap();
        let found = evidence(&job, &limits()).unwrap();
        let all =
            found.rows.iter().filter(|((step, _), _)| *step == 1).flat_map(|(_, row)| row.stages.values());
        (job.advice(), all.map(|stage| (stage.splittable_share(), stage.split_share())).collect::<Vec<_>>())
    };
    let (advice, shares_of_none) = shares("false");
    let advice = advice.unwrap();
    assert!(advice.contains("stage 0: ") && advice.contains("activation_checkpoint.queue=true"), "{advice}");
    // Embedding and head alone.
    assert!(shares_of_none.iter().all(|(could, did)| *could < 0.4 && *did < 0.6), "{shares_of_none:?}");
    assert_eq!(shares("true"), (None, vec![(1.0, 1.0); 2]));
}

#[test]
fn boxes_make_a_whole_and_holes_and_copies_that_differ_are_told() {
    let mut whole = Whole::new(&[3, 2]);
    let region = |offsets: &[u64], extents: &[u64]| Region::new(offsets, extents).unwrap();
    whole.put(&region(&[1, 0], &[2, 1]), &[3.0, 5.0]).unwrap();
    whole.put(&region(&[0, 1], &[3, 1]), &[2.0, 4.0, 6.0]).unwrap();
    whole.put(&region(&[2, 0], &[1, 2]), &[5.0, 6.0]).unwrap();
    assert!(
        whole
            .put(&region(&[2, 0], &[1, 1]), &[5.5])
            .unwrap_err()
            .to_string()
            .contains("copies of element 4 differ")
    );
    assert!(whole.put(&region(&[2, 0], &[1, 1]), &[5.0, 6.0]).is_err());
    assert!(Whole::new(&[2]).finish().unwrap_err().to_string().contains("2 of 2 elements are nowhere"));
    let mut full = Whole::new(&[2, 2]);
    full.put(&region(&[0, 0], &[2, 2]), &[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(full.finish().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn one_bit_of_a_gradient_and_a_missing_step_are_differences() {
    let mut one = Evidence::default();
    one.losses.insert(1, 1.0_f32.to_bits());
    one.gradients.insert((1, "w".to_owned()), vec![0.0, 1.0]);
    let mut other = one.clone();
    assert_eq!(one.differs(&other), Vec::<String>::new());
    other.gradients.insert((1, "w".to_owned()), vec![-0.0, 1.0]);
    other.losses.insert(2, 0);
    assert_eq!(one.differs(&other), ["loss of step 2: none and 0", "gradient of w in step 1"]);
    assert!(one.apart(&other).is_err());
    assert_eq!(Evidence::default().differs(&Evidence::default()), ["nothing was computed"]);
}
