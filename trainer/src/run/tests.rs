//! Whole runs in one process, on the local transport: the same bits on every mesh, and across saves, kills and meshes.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::*;
use crate::{
    Result,
    checkpoint::Saved,
    config::{LoadProof, Override, resolve},
    exact::{FAST_LOSS, FAST_WEIGHT},
    transport::Limits,
};

mod alone;
mod ledger;
mod precision;
mod resume;
mod saves;
mod schedules;
mod sequence;
mod strategies;

/// How late rank 1 is with its part of a save that is slowed down: longer than parts are waited for that will hardly come.
const LATE: Duration = Duration::from_millis(3500);

/// Losses (bits) by step, as rank 0 saw them.
type Curve = Arc<Mutex<Vec<(u64, u32)>>>;

struct Watcher {
    rank: usize,
    curve: Curve,
    begun: Arc<Mutex<Vec<Begun>>>,
    warnings: Arc<Mutex<Vec<String>>>,
    saved: Arc<Mutex<Vec<Saved>>>,
}

impl Observer for Watcher {
    fn begun(&mut self, begun: &Begun) -> Result<()> {
        if self.rank == 0 {
            self.begun.lock().unwrap().push(begun.clone());
        }
        Ok(())
    }
    fn step(&mut self, step: &StepDone) -> Result<()> {
        if self.rank == 0 {
            self.curve.lock().unwrap().push((step.step, step.loss.to_bits()));
        }
        Ok(())
    }
    fn saved(&mut self, saved: &Saved) -> Result<()> {
        self.saved.lock().unwrap().push(saved.clone());
        Ok(())
    }
    fn warn(&mut self, text: &str) -> Result<()> {
        if self.rank == 0 {
            self.warnings.lock().unwrap().push(text.to_owned());
        }
        Ok(())
    }
    fn speaker(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        // Whoever says that its first blob is there is on a save's thread: rank 1 is late with its part.
        let late = (self.rank == 1).then_some(LATE);
        Arc::new(move |line| {
            if let Some(late) = late.filter(|_| line.contains("wrote its first blob")) {
                std::thread::sleep(late);
            }
        })
    }
}

/// A folder with text to train on, and a root for checkpoints.
struct Place(tempfile::TempDir);

struct Ran {
    curve: Vec<(u64, u32)>,
    begun: Vec<Begun>,
    warnings: Vec<String>,
    /// Of all ranks.
    saved: Vec<Saved>,
    summary: Result<Summary>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        std::fs::create_dir(&text).unwrap();
        let words: Vec<u8> = (0..20_000_u32)
            .map(|at| b"etaoin shrdlu\n"[(at.wrapping_mul(2_654_435_761) >> 13) as usize % 14])
            .collect();
        std::fs::write(text.join("a.txt"), words).unwrap();
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn job(&self, kind: &str, settings: &[(&str, &str)]) -> Result<Job> {
        let folder = self.path().display().to_string();
        let mut all = vec![
            ("model.kind", kind.to_owned()),
            ("model.layers", "4".to_owned()),
            ("model.dim", "32".to_owned()),
            ("model.heads", "8".to_owned()),
            ("model.ffn", "64".to_owned()),
            ("model.vocab", "256".to_owned()),
            ("model.max_length", "64".to_owned()),
            ("training.global_batch", "8".to_owned()),
            ("training.micro_batch", "1".to_owned()),
            ("training.seq_len", "16".to_owned()),
            ("training.steps", "4".to_owned()),
            ("optimizer.lr", "1e-3".to_owned()),
            // Whatever the number of steps: a resume that changes rates warns.
            ("lr_scheduler.decay_steps", "8".to_owned()),
            ("exact.virtual_tp", "2".to_owned()),
            ("data.folder", format!("{folder}/text")),
            ("checkpoint.root", format!("{folder}/root")),
            ("checkpoint.interval", "2".to_owned()),
            ("parallelism.ties", "sync".to_owned()),
        ];
        if kind == "llama" {
            all.push(("model.kv_heads", "4".to_owned()));
            all.push(("model.head_dim", "8".to_owned()));
        }
        all.extend(settings.iter().map(|(key, value)| (*key, (*value).to_owned())));
        let overrides: Vec<Override> =
            all.iter().map(|(key, value)| format!("{key}={value}").parse().unwrap()).collect();
        Job::new(resolve(None, &overrides)?)
    }

    fn run(&self, settings: &[(&str, &str)]) -> Ran {
        self.run_model("llama", settings)
    }

    fn run_model(&self, kind: &str, settings: &[(&str, &str)]) -> Ran {
        let (curve, begun, warnings) = (Curve::default(), Arc::default(), Arc::default());
        let saved = Arc::<Mutex<Vec<Saved>>>::default();
        let summary = self.job(kind, settings).and_then(|job| {
            let watcher = |rank| {
                let (curve, begun, warnings) =
                    (Arc::clone(&curve), Arc::clone(&begun), Arc::clone(&warnings));
                Ok(Watcher { rank, curve, begun, warnings, saved: Arc::clone(&saved) })
            };
            let limits =
                Limits { step: Duration::from_secs(60), start: Duration::from_secs(60), ..Limits::default() };
            run_threads(&job, &limits, &Terms { stop: Arc::default(), restart: 0 }, watcher)
        });
        let taken = |it: &Mutex<Vec<_>>| std::mem::take(&mut *it.lock().unwrap());
        Ran {
            curve: taken(&curve),
            begun: std::mem::take(&mut *begun.lock().unwrap()),
            warnings: std::mem::take(&mut *warnings.lock().unwrap()),
            saved: std::mem::take(&mut *saved.lock().unwrap()),
            summary,
        }
    }
}

fn curve(mesh: &str, more: &[(&str, &str)]) -> Vec<(u64, u32)> {
    let place = Place::new();
    let mut settings = vec![("parallelism.mesh", mesh)];
    settings.extend(more);
    let ran = place.run(&settings);
    ran.summary.unwrap();
    ran.curve
}

#[test]
fn losses_have_the_same_bits_on_every_mesh_and_with_every_schedule() {
    let alone = curve("1x1x1", &[]);
    assert_eq!(alone.len(), 4);
    for mesh in ["2x1x1", "1x2x1", "1x1x2", "2x2x2", "4x2x1"] {
        for schedule in ["1F1B", "GPipe"] {
            assert_eq!(curve(mesh, &[("parallelism.schedule", schedule)]), alone, "{mesh} {schedule}");
        }
    }
}

#[test]
fn one_part_is_gathered_at_a_time_and_one_ahead_when_ranks_share_the_weights() {
    for mesh in ["2x1x1", "2x2x1", "2x2x2", "4x2x1"] {
        for (prefetch, most) in [("false", 1), ("true", 2)] {
            let settings = [
                ("parallelism.mesh", mesh),
                ("training.steps", "2"),
                ("fsdp.reshard_after_forward", "always"),
                ("fsdp.prefetch", prefetch),
            ];
            assert_eq!(Place::new().run(&settings).summary.unwrap().peak_gathered, most, "{mesh}");
        }
    }
}

#[test]
fn a_run_goes_on_from_its_checkpoint_on_any_mesh_as_if_nothing_had_happened() {
    let whole = curve("1x1x1", &[("training.steps", "8")]);
    let place = Place::new();
    let mut found = Vec::new();
    for (mesh, steps, from) in
        [("2x2x1", "2", None), ("1x2x2", "5", Some(2)), ("4x1x2", "6", Some(5)), ("1x1x1", "8", Some(6))]
    {
        let ran = place.run(&[
            ("parallelism.mesh", mesh),
            ("training.steps", steps),
            ("lr_scheduler.decay_steps", "8"),
        ]);
        ran.summary.unwrap();
        assert_eq!(ran.warnings, Vec::<String>::new());
        assert_eq!(ran.begun[0].step, from.unwrap_or(0), "{mesh}");
        assert_eq!(ran.begun[0].from.is_some(), from.is_some(), "{mesh}");
        assert_eq!(
            ran.begun[0].loaded.map(|it| (it.read == it.own, it.proof)),
            from.map(|_| (true, LoadProof::Group))
        );
        found.extend(ran.curve);
    }
    let whole_with_the_same_rates =
        curve("1x1x1", &[("training.steps", "8"), ("lr_scheduler.decay_steps", "8")]);
    assert_eq!(found, whole_with_the_same_rates);
    assert_eq!(found.len(), whole.len());
}

#[test]
fn a_tied_model_trains_alike_on_one_stage_and_on_many() {
    let curve = |mesh| {
        let ran = Place::new().run_model("gpt2", &[("parallelism.mesh", mesh)]);
        ran.summary.unwrap();
        ran.curve
    };
    let alone = curve("1x1x1");
    assert_eq!(alone.len(), 4);
    for mesh in ["1x4x1", "2x2x2"] {
        assert_eq!(curve(mesh), alone, "{mesh}");
    }
}

#[test]
fn a_parameter_on_two_pipeline_ranks_is_refused_unless_it_is_asked_for() {
    let with = |more: &[(&str, &str)]| {
        let settings = [&[("parallelism.mesh", "1x2x1"), ("parallelism.ties", "reject")][..], more].concat();
        Place::new().job("gpt2", &settings)
    };
    let error = with(&[]).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Config);
    let said = error.to_string();
    assert!(said.contains("is tied: pipeline ranks 0 and 1 (stage 1) both use it"), "{said}");
    assert!(error.hint_text().unwrap().contains("parallelism.ties = \"sync\""), "{error}");
    with(&[("parallelism.ties", "sync")]).unwrap();
    with(&[("parallelism.schedule", "ZBVZeroBubble")]).expect("a V has both ends on one rank");
    with(&[("parallelism.mesh", "2x1x2")]).unwrap();
}

#[test]
fn a_resume_that_changes_what_numbers_depend_on_says_so() {
    let place = Place::new();
    place.run(&[("lr_scheduler.decay_steps", "8")]).summary.unwrap();
    let on = [("training.steps", "6"), ("lr_scheduler.decay_steps", "8"), ("parallelism.mesh", "2x1x1")];
    let ran = place.run(&on);
    assert_eq!((ran.summary.is_ok(), ran.warnings), (true, vec![]), "another mesh changes nothing");
    let on = [&on[1..], &[("training.steps", "8"), ("training.mixed_precision_param", "bfloat16")]].concat();
    let ran = place.run(&on);
    ran.summary.unwrap();
    assert_eq!(ran.warnings.len(), 1);
    let words = "since the checkpoint, training.mixed_precision_param from \"float32\" to \"bfloat16\"";
    assert!(ran.warnings[0].starts_with(words), "{:?}", ran.warnings);
}

#[test]
fn losses_that_are_not_numbers_stop_all_ranks_before_the_update() {
    let place = Place::new();
    let poisoned = [("parallelism.mesh", "2x2x1"), ("debug.nan_step", "3"), ("debug.nan_rank", "3")];
    let ran = place.run(&poisoned);
    let error = ran.summary.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::NotFinite, "{error}");
    assert!(error.to_string().contains("rank 3"), "{error}");
    assert_eq!(ran.curve.len(), 2);
    let again = place.run(&[("parallelism.mesh", "2x2x1")]);
    again.summary.unwrap();
    assert_eq!((again.begun[0].step, again.curve.len()), (2, 2));
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_taken_or_the_run_stops() {
    let place = Place::new();
    place.run(&[]).summary.unwrap();
    let newest = newest_folder(&place);
    let blob = std::fs::read_dir(newest.join("data")).unwrap().flatten().next().unwrap().path();
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let stopped = place.run(&[("training.steps", "6"), ("checkpoint.on_damage", "stop")]);
    assert_eq!(stopped.summary.unwrap_err().kind(), crate::ErrorKind::Corrupt);
    let ran = place.run(&[("training.steps", "6")]);
    ran.summary.unwrap();
    assert_eq!(ran.begun[0].step, 2);
    assert!(ran.warnings[0].contains("step 4 is damaged"), "{:?}", ran.warnings);
    let loaded = ran.begun[0].loaded.unwrap();
    assert_eq!(loaded.read, loaded.own, "rank 0 reads what is its own and no more");
    let none =
        place.run(&[("training.steps", "6"), ("checkpoint.run", "other"), ("checkpoint.resume", "require")]);
    assert_eq!(none.summary.unwrap_err().kind(), crate::ErrorKind::NotFound);
}

#[test]
fn all_ranks_go_back_to_the_checkpoint_before_when_the_bytes_of_one_are_damaged() {
    for proof in ["group", "blocks"] {
        let place = Place::new();
        let of = |more: &[(&'static str, &'static str)]| {
            let mesh = [("parallelism.mesh", "2x2x1"), ("checkpoint.verify", proof)];
            place.run(&[&mesh[..], more].concat())
        };
        of(&[]).summary.unwrap();
        let newest = newest_folder(&place);
        let blobs = std::fs::read_dir(newest.join("data")).unwrap().flatten().map(|it| it.path());
        let blob = blobs.max().unwrap();
        let mut bytes = std::fs::read(&blob).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        std::fs::write(&blob, bytes).unwrap();
        let stopped = of(&[("training.steps", "6"), ("checkpoint.on_damage", "stop")]);
        let error = stopped.summary.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Corrupt, "{proof}: {error}");
        assert!(error.to_string().contains("step 4 is damaged"), "{proof}: {error}");
        let ran = of(&[("training.steps", "6")]);
        ran.summary.unwrap();
        assert_eq!((ran.begun.len(), ran.begun[0].step, ran.curve.len()), (1, 2, 4), "{proof}");
        assert!(ran.warnings[0].contains("step 4 is damaged"), "{proof}: {:?}", ran.warnings);
    }
}

#[test]
fn a_checkpoint_of_another_model_or_geometry_is_refused_by_what_differs() {
    let place = Place::new();
    place.run(&[]).summary.unwrap();
    let other = place.run(&[("training.steps", "6"), ("model.ffn", "32")]);
    let error = other.summary.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Incompatible);
    assert!(error.to_string().contains("layers.0.feed_forward.w1.weight"), "{error}");
    let other = place.run(&[("training.steps", "6"), ("exact.virtual_tp", "4")]);
    assert!(other.summary.unwrap_err().to_string().contains("4 virtual tp ranks"));
}

fn newest_folder(place: &Place) -> std::path::PathBuf {
    step_folders(place).into_iter().max().unwrap()
}

/// Weights of the newest checkpoint, by name.
fn weights(place: &Place) -> BTreeMap<String, Vec<f32>> {
    let loader = dcp::load::Loader::newest(&open(place), &"main".parse().unwrap()).unwrap();
    let entries = loader.catalog().registry.entries().iter();
    let params = entries.filter(|entry| entry.role == fqn::Role::Param);
    let values = params.map(|entry| {
        let bytes =
            loader.reader().read_vec(&entry.id(), &reshard::Region::whole(&entry.shape).unwrap()).unwrap();
        let values = bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()));
        (entry.fqn.to_string(), values.collect())
    });
    values.collect()
}

fn open(place: &Place) -> dcp::store::Root {
    let root = place.path().join("root");
    dcp::store::Root::open(root.to_str().unwrap(), &dcp::store::Stores::new()).unwrap()
}

#[test]
fn fast_mode_stays_within_its_tolerance_on_every_mesh_and_repeats_itself_to_the_bit() {
    const STEPS: &str = "6";
    let fast = |mesh| {
        let place = Place::new();
        let settings = [
            ("training.mode", "fast"),
            ("parallelism.mesh", mesh),
            ("training.steps", STEPS),
            ("lr_scheduler.decay_type", "constant"),
        ];
        let ran = place.run(&settings);
        ran.summary.unwrap();
        (ran.curve, weights(&place))
    };
    let (alone, whole) = fast("1x1x1");
    assert_eq!(alone.len(), 6);
    for mesh in ["2x2x2", "1x1x4", "4x2x1"] {
        let (curve, weights) = fast(mesh);
        for ((step, mine), (_, theirs)) in curve.iter().zip(&alone) {
            let (mine, theirs) = (f64::from(f32::from_bits(*mine)), f64::from(f32::from_bits(*theirs)));
            let apart = (mine - theirs).abs() / theirs;
            assert!(apart <= FAST_LOSS, "{mesh}, step {step}: {mine} and {theirs}: {apart:e}");
        }
        assert!(weights.keys().eq(whole.keys()), "{mesh}");
        let pairs = weights.values().flatten().zip(whole.values().flatten());
        let apart = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        let allowed = FAST_WEIGHT * 6.0 * 1e-3;
        println!("{mesh}: weights apart by {apart:e} of {allowed:e}");
        assert!(apart <= allowed, "{mesh}: weights apart by {apart:e}, more than {allowed:e}");
        assert!(fast(mesh) == (curve, weights), "{mesh} repeats itself");
    }
}

#[test]
fn the_last_two_checkpoints_stay_and_the_others_go_with_their_folders_after_the_grace_period() {
    for (grace, folders) in [("0s", 2), ("15m", 5)] {
        let place = Place::new();
        let settings = [
            ("parallelism.mesh", "2x1x1"),
            ("training.steps", "5"),
            ("checkpoint.interval", "1"),
            ("checkpoint.keep_last", "2"),
            ("checkpoint.grace", grace),
        ];
        place.run(&settings).summary.unwrap();
        let log = dcp::commit::Log::open(&open(&place)).unwrap();
        let steps: Vec<u64> = log.state().checkpoints.values().map(|checkpoint| checkpoint.step).collect();
        assert_eq!(steps, [4, 5], "{grace}");
        assert_eq!(step_folders(&place).len(), folders, "{grace}: {:?}", step_folders(&place));
        let again = place.run(&[&settings[..], &[("training.steps", "6")]].concat());
        again.summary.unwrap();
        assert_eq!((again.begun[0].step, again.warnings.len()), (5, 0));
    }
}

fn step_folders(place: &Place) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(place.path().join("root")).unwrap().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains("step-")).collect()
}

#[test]
fn a_run_with_compressed_checkpoints_goes_on_to_the_bit_and_they_say_how_they_are_compressed() {
    let whole = curve("1x1x1", &[("lr_scheduler.decay_steps", "4")]);
    let place = Place::new();
    let settings = |steps, mesh| {
        [
            ("checkpoint.codec", "planes, param=none"),
            ("lr_scheduler.decay_steps", "4"),
            ("training.steps", steps),
            ("parallelism.mesh", mesh),
        ]
    };
    let first = place.run(&settings("2", "2x1x1"));
    first.summary.unwrap();
    let loader = dcp::load::Loader::newest(&open(&place), &"main".parse().unwrap()).unwrap();
    assert_eq!(loader.catalog().codecs.as_deref(), Some("planes,param=none"));
    assert!(loader.catalog().files.iter().any(dcp::FileEntry::is_coded));
    let again = place.run(&settings("4", "1x2x1"));
    again.summary.unwrap();
    assert_eq!((again.begun[0].step, again.warnings), (2, vec![]));
    assert_eq!([first.curve, again.curve].concat(), whole);
}
