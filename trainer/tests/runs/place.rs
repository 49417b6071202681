//! A folder with text to train on and the runs in it, made by the real binary, in processes of their own.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use dcp::{
    commit::Log,
    load::Loader,
    store::{Root, Stores},
};
use fqn::Entry;
use reshard::Region;
use trainer::{data::log, metrics};

const EXE: &str = env!("CARGO_BIN_EXE_ckpt-train");
const LOSS: &str = "loss_metrics/global_avg_loss";

/// What all runs have in common.
const SETTINGS: &[&str] = &[
    "model.layers=4",
    "model.dim=32",
    "model.heads=8",
    "model.head_dim=8",
    "model.ffn=64",
    "training.global_batch=8",
    "training.micro_batch=1",
    "training.seq_len=16",
    "training.seed=3",
    "optimizer.lr=1e-3",
    "lr_scheduler.decay_steps=20",
    "exact.virtual_tp=2",
    "checkpoint.interval=2",
    "metrics.log_freq=1",
    "comm.start_timeout=60s",
    "comm.step_timeout=60s",
];

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) err: String,
}

impl Answer {
    fn of(output: &Output) -> Self {
        Self { code: output.status.code(), err: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    /// Asserts that it ended with `code`, and said all of these.
    pub(crate) fn is(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in\n{}", self.err);
        }
    }
}

/// A launcher that runs.
pub(crate) struct Launched {
    child: Child,
    err: BufReader<ChildStderr>,
    said: String,
}

impl Launched {
    /// The next line of its stderr that holds `word`.
    pub(crate) fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.err.read_line(&mut line).unwrap() > 0, "{word:?} is not in\n{}", self.said);
            self.said.push_str(&line);
            if line.contains(word) {
                return line;
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn end(mut self) -> Answer {
        let mut line = String::new();
        while self.err.read_line(&mut line).unwrap() > 0 {
            self.said.push_str(&line);
            line.clear();
        }
        Answer { code: self.child.wait().unwrap().code(), err: self.said }
    }
}

/// The folder.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("text")).unwrap();
        let letter = |at: u32| b"etaoin shrdlu\n"[(at.wrapping_mul(2_654_435_761) >> 13) as usize % 14];
        fs::write(folder.path().join("text/a.txt"), (0..20_000).map(letter).collect::<Vec<_>>()).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Arguments of `train`, for the run of this name.
    fn arguments(&self, run: &str, more: &[&str]) -> Vec<String> {
        let own = [
            "data.folder=text".to_owned(),
            format!("checkpoint.root={run}"),
            format!("metrics.folder={run}-metrics"),
        ];
        let all = SETTINGS.iter().map(|text| (*text).to_owned()).chain(own);
        all.chain(more.iter().map(|text| (*text).to_owned())).map(|setting| format!("--{setting}")).collect()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for name in ["RANK", "WORLD_SIZE", "LOG_RANK", "OMP_NUM_THREADS"] {
            command.env_remove(name);
        }
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// Trains in one process.
    pub(crate) fn train(&self, run: &str, more: &[&str]) -> Answer {
        let output = self.command(EXE).arg("train").args(self.arguments(run, more)).output().unwrap();
        Answer::of(&output)
    }

    /// Trains in one process that can't write files larger than about `kilobytes`, as on a disk that is full.
    pub(crate) fn train_within(&self, kilobytes: u32, run: &str, more: &[&str]) -> Answer {
        // Half-kilobytes in a plain shell, kilobytes in bash. The signal would end the process; ignored, writes fail.
        let script = format!("trap '' XFSZ; ulimit -f {kilobytes}; exec \"$@\"");
        let mut command = self.command("sh");
        command.args(["-c", &script, "sh", EXE, "train"]).args(self.arguments(run, more));
        Answer::of(&command.output().unwrap())
    }

    /// Trains as rank 0 of two processes of which the other never comes.
    pub(crate) fn train_forsaken(&self, run: &str, more: &[&str]) -> Answer {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = self.command(EXE);
        for (name, value) in
            [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")]
        {
            command.env(name, value);
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        Answer::of(&command.arg("train").args(self.arguments(run, more)).output().unwrap())
    }

    /// Begins to train in several processes.
    pub(crate) fn launch(&self, options: &[&str], run: &str, more: &[&str]) -> Launched {
        let mut command = self.command(EXE);
        let grace = if options.contains(&"--grace") { &[][..] } else { &["--grace", "60s"] };
        command.arg("launch").args(grace).args(options).arg("--").args(self.arguments(run, more));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Launched { child, err, said: String::new() }
    }

    fn metrics(&self, run: &str, name: &str) -> PathBuf {
        self.path().join(format!("{run}-metrics")).join(name)
    }

    /// Bits of the losses, by step.
    pub(crate) fn curve(&self, run: &str) -> BTreeMap<u64, u32> {
        metrics::curve(&self.metrics(run, "rank_00000.jsonl"), LOSS).unwrap()
    }

    /// Asserts that every sample of `steps` steps was consumed once; how often the run was begun.
    pub(crate) fn samples(&self, run: &str, steps: usize) -> u64 {
        let folded = log::fold(&self.metrics(run, "samples.jsonl")).unwrap();
        assert_eq!((folded.steps.len(), folded.cursor), (steps, steps as u64 * 8));
        folded.incarnations
    }

    /// Steps of the checkpoints that are there, oldest first.
    pub(crate) fn checkpoints(&self, run: &str) -> Vec<u64> {
        Log::open(&self.root(run))
            .unwrap()
            .state()
            .checkpoints
            .values()
            .map(|checkpoint| checkpoint.step)
            .collect()
    }

    /// Bytes of every tensor of the newest checkpoint, optimizer included.
    fn state(&self, run: &str) -> BTreeMap<String, Vec<u8>> {
        let loader = Loader::open(&self.root(run), &"latest".parse().unwrap()).unwrap();
        let reader = loader.reader();
        let tensor = |entry: &Entry| {
            let region = Region::whole(&entry.shape).unwrap();
            (entry.id().to_string(), reader.read_vec(&entry.id(), &region).unwrap())
        };
        loader.catalog().registry.entries().iter().map(tensor).collect()
    }

    fn root(&self, run: &str) -> Root {
        Root::open(&self.path().join(run).display().to_string(), &Stores::new()).unwrap()
    }

    /// Asserts that losses, weights, moments and counts are, bit for bit, those of `steps` steps in one process that
    /// nothing happened to.
    pub(crate) fn is_undisturbed(&self, run: &str, steps: u64) {
        self.train("still", &[&format!("training.steps={steps}"), "checkpoint.interval=1000"]).is(0, &[]);
        assert_eq!(self.checkpoints("still"), [steps]);
        let (curve, state) = (self.curve("still"), self.state("still"));
        assert!(curve.keys().copied().eq(1..=steps), "{curve:?}");
        assert_eq!(self.curve(run), curve);
        assert_eq!(state.len(), (1 + 4 * 9 + 2) * 4);
        let theirs = self.state(run);
        assert!(state.keys().eq(theirs.keys()));
        let differ: Vec<&String> = state.keys().filter(|name| state[*name] != theirs[*name]).collect();
        assert!(differ.is_empty(), "{differ:?}");
    }
}
