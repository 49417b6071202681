//! A trained model in one process, against what its training computed next.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use dcp::store::{Root, Stores};

use super::*;
use crate::{
    Error, ErrorKind, Result,
    config::{Override, resolve},
    data::{Corpus, Stream},
    run::{Job, Observer, StepDone, Terms, run_threads},
    transport::Limits,
};
use tch::{Kind, Reduction, Tensor};

const LENGTH: u64 = 16;

/// Keeps the losses.
struct Losses(Arc<Mutex<Vec<f32>>>);

impl Observer for Losses {
    fn step(&mut self, step: &StepDone) -> Result<()> {
        self.0.lock().unwrap().push(step.loss);
        Ok(())
    }
    fn warn(&mut self, text: &str) -> Result<()> {
        Err(Error::internal(text))
    }
}

/// Two steps on `mesh`, each saved; the losses as a rank saw them.
fn train(folder: &Path, kind: &str, mesh: &str) -> Vec<f32> {
    let text = folder.join("text");
    std::fs::create_dir(&text).unwrap();
    let letter = |at: u32| b"a tale of sums, "[(at.wrapping_mul(2_654_435_761) >> 9) as usize % 16];
    std::fs::write(text.join("a.txt"), (0..4000).map(letter).collect::<Vec<_>>()).unwrap();
    let (root, data) = (folder.join("root"), text.display());
    let sizes = if kind == "llama" { "model.kv_heads=4 model.ffn=64" } else { "model.ffn=128" };
    let settings = format!(
        "model.kind={kind} model.layers=2 model.dim=32 model.heads=4 {sizes} model.max_length=24 training.global_batch=4 \
         training.micro_batch=1 training.seq_len={LENGTH} training.steps=2 optimizer.lr=1e-2 exact.virtual_tp=2 \
         checkpoint.interval=1 parallelism.mesh={mesh} data.folder={data} checkpoint.root={}",
        root.display()
    );
    let overrides: Vec<Override> = settings.split_whitespace().map(|text| text.parse().unwrap()).collect();
    let job = Job::new(resolve(None, &overrides).unwrap()).unwrap();
    let losses = Arc::new(Mutex::new(Vec::new()));
    let terms = Terms { stop: Arc::default(), restart: 0 };
    let seen = |rank| Ok(Losses(if rank == 0 { Arc::clone(&losses) } else { Arc::default() }));
    run_threads(&job, &Limits::default(), &terms, seen).unwrap();
    let found = losses.lock().unwrap().clone();
    assert_eq!(found.len(), 2);
    found
}

fn open(folder: &Path, revision: &str) -> Result<Trained> {
    let root =
        Root::open(&folder.join("root").display().to_string(), &Stores::new()).map_err(dcp::Error::from)?;
    Trained::open(&root, &revision.parse().unwrap())
}

/// Mean cross entropy, by libtorch, over the four samples from `cursor` on.
fn loss(trained: &Trained, folder: &Path, cursor: u64) -> f64 {
    let corpus = Arc::new(Corpus::open(&folder.join("text")).unwrap());
    let stream = Stream::new(corpus, LENGTH, 0).unwrap();
    let of = |index| {
        let sample = stream.microbatch(cursor, index, 1).unwrap();
        let logits = trained.logits(&sample.tokens).unwrap();
        let targets = Tensor::from_slice(&sample.targets);
        logits.cross_entropy_loss(&targets, None::<&Tensor>, Reduction::Mean, -100, 0.0).double_value(&[])
    };
    (0..4).map(of).sum::<f64>() / 4.0
}

#[test]
fn the_model_of_a_checkpoint_has_the_loss_that_its_training_computed_next() {
    for (kind, mesh) in [("llama", "1x2x2"), ("gpt2", "2x1x1")] {
        let folder = tempfile::tempdir().unwrap();
        let losses = train(folder.path(), kind, mesh);
        let first = open(folder.path(), "step:1").unwrap();
        assert_eq!((first.step(), first.longest()), (1, 24));
        let (found, wanted) = (loss(&first, folder.path(), 4), f64::from(losses[1]));
        assert!((found - wanted).abs() < 1e-5 * wanted, "{kind}: {found} and {wanted}");
        let newest = open(folder.path(), "latest").unwrap();
        assert!(newest.step() == 2 && (loss(&newest, folder.path(), 4) - found).abs() > 1e-3);
    }
}

#[test]
fn a_continuation_is_the_likeliest_token_behind_each_prefix() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "llama", "1x1x1");
    let trained = open(folder.path(), "latest").unwrap();
    let prompt: Vec<i64> = b"a tale".iter().map(|byte| i64::from(*byte)).collect();
    let made = trained.greedy(&prompt, 8).unwrap();
    assert_eq!((made.logits.size(), made.ids.len()), (vec![6, 256], 8));
    let mut text = prompt.clone();
    for id in &made.ids {
        let last = trained.logits(&text).unwrap().select(0, text.len() as i64 - 1);
        assert_eq!(last.argmax(-1, false).int64_value(&[]), *id);
        text.push(*id);
    }
    // What stands behind a token does not change what is expected after it.
    let all = trained.logits(&text).unwrap().narrow(0, 0, 6);
    assert!((all - &made.logits).abs().max().double_value(&[]) < 1e-5);
    assert_eq!(made.logits.kind(), Kind::Float);
    assert!(trained.greedy(&prompt, 0).unwrap().ids.is_empty());
}

#[test]
fn what_a_model_cannot_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "llama", "1x1x1");
    let trained = open(folder.path(), "latest").unwrap();
    let kind = |found: Result<Continuation>| found.unwrap_err().kind();
    assert_eq!(kind(trained.greedy(&[], 1)), ErrorKind::Config);
    assert!(trained.greedy(&[65; 20], 5).is_ok(), "24 tokens are read, the 25th is made");
    assert_eq!(kind(trained.greedy(&[65; 20], 6)), ErrorKind::Config);
    assert_eq!(kind(trained.greedy(&[256], 1)), ErrorKind::Data);
    assert_eq!(open(folder.path(), "step:7").unwrap_err().kind(), ErrorKind::NotFound);
}
