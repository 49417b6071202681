//! The run of a preflight: its settings, its text, and its processes, which are started as a user would start them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use trainer::{
    Error, ErrorKind, Place as _, Result,
    config::{Override, Resolved, resolve},
};

/// Workers of the pipeline.
pub(super) const WORKERS: usize = 4;
/// Steps before the mesh changes, and after it.
pub(super) const STEPS: (u64, u64) = (10, 12);
/// A worker dies in this one; checkpoints are of every fifth.
pub(super) const DIES: u64 = 8;
pub(super) const INTERVAL: u64 = 5;
/// Sequences of a step.
pub(super) const BATCH: u64 = 16;
/// The worker that dies.
pub(super) const VICTIM: usize = 2;
/// Lines of a failed process that are shown.
const LAST_WORDS: usize = 3;

const SETTINGS: &str = "\
[model]
kind = \"llama\"
dim = 32
layers = 8
heads = 8
kv_heads = 4
head_dim = 8
ffn = 64

[training]
seq_len = 16
seed = 7

[exact]
virtual_tp = 2

[optimizer]
lr = 3e-3

[lr_scheduler]
warmup_steps = 2

[metrics]
log_freq = 1

[comm]
start_timeout = \"5m\"
step_timeout = \"5m\"
";

/// Text to learn: it repeats itself, so that a few steps show.
const TEXT: &str = "a preflight is short, and a preflight is cheap; what fails here, fails here first.\n";

/// The folder, with settings and text in it.
pub(super) struct Road {
    folder: PathBuf,
    schedule: String,
}

impl Road {
    pub(super) fn new(folder: &Path, schedule: &str) -> Result<Self> {
        fs::create_dir_all(folder.join("text")).place(folder.display())?;
        // Its processes run in it: a path from here would lead elsewhere there.
        let folder = &folder.canonicalize().place(folder.display())?;
        fs::write(folder.join("text/a.txt"), TEXT.repeat(200)).place(folder.display())?;
        let (steps, decay) = STEPS;
        let own = format!("{SETTINGS}\n[data]\nfolder = {:?}\n", folder.join("text").display().to_string());
        let own = own
            .replace("seq_len = 16\n", &format!("seq_len = 16\nsteps = {steps}\nglobal_batch = {BATCH}\n"))
            .replace("warmup_steps = 2\n", &format!("warmup_steps = 2\ndecay_steps = {decay}\n"));
        fs::write(folder.join("run.toml"), own).place(folder.display())?;
        Ok(Self { folder: folder.clone(), schedule: schedule.to_owned() })
    }

    /// Something in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Settings of the pipeline.
    pub(super) fn pipeline(&self) -> Vec<String> {
        vec![format!("parallelism.mesh=1x{WORKERS}x1"), format!("parallelism.schedule={}", self.schedule)]
    }

    /// The configuration with these settings, for the run of this name.
    pub(super) fn resolve(&self, run: &str, more: &[String]) -> Result<Resolved> {
        let settings = self.settings(run, more);
        let overrides = settings.iter().map(|text| text.parse());
        resolve(Some(&self.path("run.toml")), &overrides.collect::<Result<Vec<Override>, _>>()?)
    }

    fn settings(&self, run: &str, more: &[String]) -> Vec<String> {
        let place = |name: &str| self.path(run).join(name).display().to_string();
        let own = [
            format!("checkpoint.root={}", place("store")),
            format!("metrics.folder={}", place("metrics")),
            format!("comm.dump_folder={}", place("dumps")),
        ];
        own.into_iter().chain(more.iter().cloned()).collect()
    }

    /// Trains in one process, which may have several ranks as threads. What it printed.
    pub(super) fn train(&self, run: &str, more: &[String]) -> Result<String> {
        self.started("train", run, &[], more)
    }

    /// Trains in four processes. What they printed.
    pub(super) fn launch(&self, run: &str, options: &[&str], more: &[String]) -> Result<String> {
        self.started("launch", run, options, more)
    }

    fn started(&self, verb: &str, run: &str, options: &[&str], more: &[String]) -> Result<String> {
        let program = std::env::current_exe().place("the path of this program")?;
        let mut command = Command::new(program);
        command.current_dir(&self.folder).stdin(Stdio::null()).arg(verb);
        // Whoever started this command may be a rank itself, or a task of SLURM's.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let ranks =
                ["RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "TORCHELASTIC_", "LOG_RANK"];
            if ranks.iter().any(|known| text.starts_with(known)) {
                command.env_remove(&name);
            }
        }
        command.args(options);
        if verb == "launch" {
            command.arg("--");
        }
        command.args(["--config", "run.toml"]);
        for setting in self.settings(run, more) {
            command.args(["--set", &setting]);
        }
        let output = command.output().place(verb)?;
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let log = self.path(&format!("{run}-{verb}.log"));
        fs::write(&log, &said).place(log.display())?;
        if output.status.success() {
            return Ok(said);
        }
        let told: Vec<&str> =
            said.lines().filter(|line| line.contains("error") || line.contains("launch ")).collect();
        let last = told.get(told.len().saturating_sub(LAST_WORDS)..).unwrap_or_default().join(" | ");
        Err(Error::new(ErrorKind::Internal, format!("{verb} of {run} ended with {}: {last}", output.status))
            .hint(format!("all that it said is in {}", log.display())))
    }
}
