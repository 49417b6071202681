//! What data parallelism moves in a step of the running trainer, counted where it goes through the transport, is what the ledger says:
//!
//! | strategy | weights | gradients |
//! | --- | --- | --- |
//! | `full_shard` | 2 · S · n for each microbatch | S · n once |
//! | `shard_grad_op` | S · n once | S · n once |
//! | `hybrid_shard` | as `full_shard`, over dp_shard | S · n once, and 2 · (S / dp_shard) · (R - 1) / R over replicas |
//! | `no_shard` | nothing | 2 · S · (R - 1) / R once |
//!
//! S: bytes of the weights of a rank's stages; n = (N - 1) / N over N shards; R replicas. Gradients of all microbatches are summed where
//! they arise, and reduced once a step, all parts of these small models in one collective (two more where replicas are summed exactly).

use std::{collections::BTreeMap, rc::Rc, thread};

use tch::Tensor;

use super::*;
use crate::transport::{Gathering, Group, Header, Purpose, Traffic, Transport, local};

/// What is counted: by the beginning of a purpose, and messages between stages.
const KINDS: [&str; 9] = [
    "weights of part",
    "gradients of part",
    "sums of part",
    "tp tokens",
    "tp shares",
    "tp embedding",
    "tp output",
    "tp input gradient",
    "tp gradients of tokens",
];
/// Messages between stages.
pub(super) const SENT: &str = "sent";

/// Collectives and bytes received, by rank and what they are for.
type Moved = Arc<Mutex<BTreeMap<(usize, &'static str), (u64, u64)>>>;

struct Counted {
    inner: local::LocalTransport,
    moved: Moved,
}

struct CountedGroup {
    inner: Rc<dyn Group>,
    rank: usize,
    moved: Moved,
}

impl CountedGroup {
    fn count(&self, purpose: &Purpose, bytes: u64) {
        let Some(kind) = KINDS.into_iter().find(|kind| purpose.0.starts_with(kind)) else { return };
        let mut moved = self.moved.lock().unwrap();
        let (calls, sum) = moved.entry((self.rank, kind)).or_default();
        (*calls, *sum) = (*calls + 1, *sum + bytes);
    }

    fn others(&self, kind: tch::Kind, shapes: &[Vec<i64>]) -> u64 {
        let others = shapes.iter().enumerate().filter(|(at, _)| *at != self.index());
        let elements: i64 = others.map(|(_, shape)| shape.iter().product::<i64>()).sum();
        elements.unsigned_abs() * kind.elt_size_in_bytes() as u64
    }
}

impl Group for CountedGroup {
    fn index(&self) -> usize {
        self.inner.index()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.count(purpose, self.others(mine.kind(), shapes));
        self.inner.all_gather(purpose, mine, shapes)
    }
    fn begin_all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Gathering> {
        self.count(purpose, self.others(mine.kind(), shapes));
        self.inner.begin_all_gather(purpose, mine, shapes)
    }
    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.count(purpose, self.others(parts[0].kind(), shapes));
        self.inner.exchange(purpose, parts, shapes)
    }
    /// As a ring: each part but one's own is reduced, then gathered.
    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        let bytes = (mine.numel() * mine.kind().elt_size_in_bytes()) as u64;
        self.count(purpose, 2 * bytes * (self.size() as u64 - 1) / self.size() as u64);
        self.inner.all_reduce(purpose, mine)
    }
    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.inner.all_gather_bytes(purpose, mine)
    }
}

impl Transport for Counted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn group(&self, name: &str, members: &[usize]) -> Result<Rc<dyn Group>> {
        let inner = self.inner.group(name, members)?;
        Ok(Rc::new(CountedGroup { inner, rank: self.rank(), moved: Arc::clone(&self.moved) }))
    }
    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()> {
        let bytes = tensors.iter().map(|it| (it.numel() * it.kind().elt_size_in_bytes()) as u64).sum::<u64>();
        let mut moved = self.moved.lock().unwrap();
        let (messages, sum) = moved.entry((self.rank(), SENT)).or_default();
        (*messages, *sum) = (*messages + 1, *sum + bytes);
        drop(moved);
        self.inner.send(to, header, tensors)
    }
    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>> {
        self.inner.recv(from, expect)
    }
    fn expect(&self, from: usize, header: &Header) -> Result<()> {
        self.inner.expect(from, header)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn starting(&self, starting: bool) {
        self.inner.starting(starting);
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
    fn note(&self, action: &dyn std::fmt::Display) {
        self.inner.note(action);
    }
    fn scene(&self) -> String {
        self.inner.scene()
    }
}

/// Sizes whose every shard, on up to four ranks, is a multiple of what buffers are aligned to: no padding moves.
const EVEN: [(&str, &str); 9] = [
    ("model.layers", "4"),
    ("model.dim", "256"),
    ("model.heads", "4"),
    ("model.kv_heads", "4"),
    ("model.head_dim", "64"),
    ("model.ffn", "256"),
    ("exact.virtual_tp", "1"),
    ("training.steps", "2"),
    ("checkpoint.interval", "0"),
];
const STEPS: u64 = 2;
/// Tokens of a microbatch.
const SEQUENCE: u64 = 16;
const SQUARE: u64 = 256 * 256;
/// Elements: attention and feed-forward matrices and two norms; the table, as large as the head.
const LAYER: u64 = 7 * SQUARE + 2 * 256;
const TABLE: u64 = SQUARE;

/// Counts by rank and kind, of one step.
pub(super) fn counts(settings: &[(&str, &str)]) -> BTreeMap<(usize, &'static str), (u64, u64)> {
    let place = Place::new();
    let job = place.job("llama", &[&EVEN[..], settings].concat()).unwrap();
    let (job, moved) = (&job, Moved::default());
    thread::scope(|scope| {
        for inner in local::World::new(job.ranks(), Limits::default()) {
            let moved = Arc::clone(&moved);
            let rank = move || {
                let mut watcher = Watcher {
                    rank: inner.rank(),
                    curve: Curve::default(),
                    begun: Arc::default(),
                    warnings: Arc::default(),
                    saved: Arc::default(),
                };
                let terms = Terms { stop: Arc::default(), restart: 0 };
                run_rank(job, &Counted { inner, moved }, &mut watcher, &terms).unwrap();
            };
            thread::Builder::new().stack_size(8 << 20).spawn_scoped(scope, rank).unwrap();
        }
    });
    let moved = moved.lock().unwrap();
    moved.iter().map(|(key, (calls, bytes))| (*key, (calls / STEPS, bytes / STEPS))).collect()
}

/// What one rank's data parallelism did in a step.
#[derive(Debug, PartialEq, Eq, Default)]
struct Ledger {
    /// Collectives, bytes.
    weights: (u64, u64),
    gradients: (u64, u64),
}

fn ledger(settings: &[(&str, &str)], rank: usize) -> Ledger {
    let counts = counts(settings);
    let of = |kind| counts.get(&(rank, kind)).copied().unwrap_or_default();
    let (reduced, sums) = (of("gradients of part"), of("sums of part"));
    Ledger { weights: of("weights of part"), gradients: (reduced.0 + sums.0, reduced.1 + sums.1) }
}

#[test]
fn what_each_strategy_moves_in_a_step_is_what_the_ledger_says() {
    // Eight sequences: dp ranks have 8 / dp microbatches each. Six parts: table, four layers, head with its norm.
    let (all, parts) = (4 * (2 * TABLE + 4 * LAYER + 256), 6);
    let strategy = |name| ("fsdp.strategy", name);
    let mesh = |text| ("parallelism.mesh", text);
    for (dp, text) in [(2, "2x1x1"), (4, "4x1x1")] {
        let (microbatches, once) = (8 / dp, all * (dp - 1) / dp);
        // The table is gathered for forward alone: an embedding goes back without weights.
        let table = 4 * TABLE * (dp - 1) / dp;
        let full = Ledger {
            weights: (microbatches * (2 * parts - 1), microbatches * (2 * once - table)),
            gradients: (1, once),
        };
        assert_eq!(ledger(&[mesh(text), strategy("full_shard")], 1), full);
        let kept = Ledger { weights: (parts, once), gradients: (1, once) };
        assert_eq!(ledger(&[mesh(text), strategy("shard_grad_op")], 1), kept);
        let whole = Ledger { weights: (0, 0), gradients: (2, 2 * once) };
        assert_eq!(ledger(&[mesh(text), strategy("no_shard")], 1), whole);
        let fast = Ledger { gradients: (1, 2 * once), ..whole };
        assert_eq!(ledger(&[mesh(text), strategy("no_shard"), ("training.mode", "fast")], 1), fast);
    }
    let bf16 = [mesh("2x1x1"), strategy("shard_grad_op"), ("training.mixed_precision_param", "bf16")];
    let halved = Ledger { weights: (parts, all / 2 / 2), gradients: (1, all / 2) };
    assert_eq!(ledger(&bf16, 1), halved, "weights take half as many bytes");
    let hybrid = [mesh("4x1x1"), strategy("hybrid_shard"), ("parallelism.dp_shard", "2")];
    let expected = Ledger {
        weights: (2 * (2 * parts - 1), 2 * (2 * all / 2 - 4 * TABLE / 2)),
        gradients: (3, all / 2 + 2 * all / 2 / 2),
    };
    assert_eq!(ledger(&hybrid, 3), expected);
}

#[test]
fn under_a_pipeline_weights_are_gathered_once_a_step_unless_they_are_to_be_freed() {
    // The first stage: the table, two layers (embedding and head count as one).
    let (all, parts) = (4 * (TABLE + 2 * LAYER), 3);
    let mesh = ("parallelism.mesh", "2x2x1");
    let kept = Ledger { weights: (parts, all / 2), gradients: (1, all / 2) };
    assert_eq!(ledger(&[mesh], 0), kept);
    let back = 2 * all / 2 - 4 * TABLE / 2;
    let freed = Ledger { weights: (4 * (2 * parts - 1), 4 * back), gradients: (1, all / 2) };
    assert_eq!(ledger(&[mesh, ("fsdp.reshard_after_forward", "true")], 0), freed);
}

/// Headers say the dtype, and the transport refuses tensors that are not of it.
#[test]
fn what_goes_between_stages_takes_half_the_bytes_where_products_are_on_bf16() {
    let mesh = ("parallelism.mesh", "1x2x1");
    let sent = |more: &[(&str, &str)]| {
        let counts = counts(&[&[mesh], more].concat());
        // The first stage's rank sends activations alone, the last one's their gradients.
        (counts[&(0, SENT)], counts[&(1, SENT)])
    };
    let bytes = 8 * SEQUENCE * 256 * 4;
    assert_eq!(sent(&[]), ((8, bytes), (8, bytes)));
    let half = (8, bytes / 2);
    assert_eq!(sent(&[("training.mixed_precision_param", "bf16")]), (half, half));
}
