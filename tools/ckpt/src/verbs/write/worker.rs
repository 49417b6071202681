//! [`Worker`]: the text of `--worker`, and the share that it means here: `1/4`, or what whoever started this process says.
//!
//! A share is never taken unasked: the shell of an sbatch script has SLURM's variables too and is one process, and a share that nobody
//! asked for would leave a checkpoint that is never finished.

use std::fmt::Display;
use std::str::FromStr;

use dcp::engine::{Share, ShareError};
use dcp::formats::native::Revision;
use dcp::{Error, Format, Result};

use super::{Opened, job::Job};

/// Which share of a plan to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worker {
    /// This one.
    Given(Share),
    /// That of this process among those that were started together; their number where one has to say it.
    Auto(Option<u32>),
}

impl FromStr for Worker {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = |error: ShareError| format!("{error}; or auto, or auto/N");
        match text.split_once('/') {
            None if text == "auto" => Ok(Self::Auto(None)),
            Some(("auto", count)) => match count.parse() {
                Ok(count) if count > 0 => Ok(Self::Auto(Some(count))),
                _ => Err(wrong(ShareError)),
            },
            _ => text.parse().map(Self::Given).map_err(wrong),
        }
    }
}

/// Variables of one way to start many processes.
struct Launcher {
    name: &'static str,
    worker: &'static str,
    workers: Option<&'static str>,
    /// Set only in processes that it starts, where `worker` is set in others too.
    marks: Option<&'static str>,
}

/// In this order: what is started within a task of another is its worker.
const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "torchrun", worker: "RANK", workers: Some("WORLD_SIZE"), marks: None },
    Launcher {
        name: "Open MPI",
        worker: "OMPI_COMM_WORLD_RANK",
        workers: Some("OMPI_COMM_WORLD_SIZE"),
        marks: None,
    },
    Launcher {
        name: "SLURM",
        worker: "SLURM_PROCID",
        workers: Some("SLURM_NTASKS"),
        marks: Some("SLURM_STEP_ID"),
    },
    Launcher { name: "a Kubernetes indexed Job", worker: "JOB_COMPLETION_INDEX", workers: None, marks: None },
];

impl Worker {
    /// The share that it means, by what `get` yields for a variable.
    ///
    /// # Errors
    /// `Incompatible` where no launcher's variables are set, or they contradict each other or what was given.
    pub(super) fn share(self, get: impl Fn(&str) -> Option<String>) -> Result<Share> {
        let count = match self {
            Self::Given(share) => return Ok(share),
            Self::Auto(count) => count,
        };
        let set = |launcher: &&Launcher| {
            get(launcher.worker).is_some() && launcher.marks.is_none_or(|mark| get(mark).is_some())
        };
        let launcher = LAUNCHERS.iter().find(set).ok_or_else(nobody)?;
        let number = |name: &str| -> Result<Option<u32>> {
            let Some(text) = get(name) else { return Ok(None) };
            let parsed = text.parse().map(Some);
            parsed.map_err(|_| refused(format!("{name} is {text:?}, which is no number ({})", launcher.name)))
        };
        let worker = number(launcher.worker)?.ok_or_else(nobody)?;
        let told = launcher.workers.map(number).transpose()?.flatten();
        let workers = match (told, count) {
            (Some(told), Some(count)) if told != count => {
                let text =
                    format!("{} started {told} workers, --worker auto/{count} says {count}", launcher.name);
                return Err(refused(text));
            }
            (Some(told), _) => told,
            (None, Some(count)) => count,
            (None, None) => {
                let text = format!("{} does not say how many workers there are", launcher.name);
                return Err(refused(text).hint("say it: --worker auto/8"));
            }
        };
        let variables = format!("{}={worker} of {workers}", launcher.worker);
        Share::new(worker, workers).map_err(|_| refused(format!("{variables} is none of them")))
    }
}

fn nobody() -> Error {
    let names: Vec<&str> = LAUNCHERS.iter().map(|launcher| launcher.worker).collect();
    refused(format!("nothing says which worker this is: none of {} is set", names.join(", ")))
}

fn refused(text: impl Display) -> Error {
    Error::incompatible(format!("--worker: {text}"))
        .hint("give the share itself: --worker 0/4 is the first of four")
}

/// Refuses what several workers can't do together.
///
/// # Errors
/// `Incompatible` for a target that one process has to write, or a source that workers which start at different times may find
/// different.
pub(super) fn can_share(job: &Job<'_>, opened: &Opened) -> Result<()> {
    if job.format != Format::Native {
        let text = format!("--worker: a {} target is written by one process", job.format.name());
        return Err(Error::incompatible(text)
            .hint("--as native is what many workers write; export from it afterwards"));
    }
    let Some(commit) = &opened.commit else { return Ok(()) };
    let named = job.source.revision.as_deref().and_then(|text| text.parse().ok());
    if let Some(Revision::Seq(_) | Revision::Digest(_)) = named {
        return Ok(());
    }
    let text = format!("--worker: {} may be another checkpoint for a worker that starts later", job.source);
    let hint = format!("name it, the same for all workers: {}@seq:{}", job.source.location, commit.seq);
    Err(Error::incompatible(text).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str, env: &str) -> std::result::Result<String, String> {
        let get = |name: &str| {
            let set = env.split(' ').filter_map(|pair| pair.split_once('='));
            set.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        let worker: Worker = text.parse()?;
        worker.share(get).map(|share| share.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_launcher_says_which_worker_this_is() {
        let slurm = "SLURM_PROCID=3 SLURM_NTASKS=4";
        assert_eq!(share("auto", "RANK=1 WORLD_SIZE=2").unwrap(), "1/2");
        assert_eq!(share("auto", "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=6").unwrap(), "5/6");
        assert_eq!(share("auto", &format!("{slurm} SLURM_STEP_ID=0")).unwrap(), "3/4");
        assert_eq!(share("auto/8", "JOB_COMPLETION_INDEX=7").unwrap(), "7/8");
        assert_eq!(share("auto", &format!("{slurm} SLURM_STEP_ID=0 RANK=9 WORLD_SIZE=16")).unwrap(), "9/16");
        assert_eq!(share("2/3", "RANK=0 WORLD_SIZE=8").unwrap(), "2/3");
    }

    #[test]
    fn what_is_not_said_is_not_guessed() {
        let batch_script = "SLURM_PROCID=0 SLURM_NTASKS=4";
        for (text, env, word) in [
            ("auto", "", "none of RANK"),
            ("auto", batch_script, "none of RANK"),
            ("auto", "JOB_COMPLETION_INDEX=1", "how many"),
            ("auto/8", "JOB_COMPLETION_INDEX=8", "JOB_COMPLETION_INDEX=8 of 8"),
            ("auto/8", "RANK=1 WORLD_SIZE=4", "started 4"),
            ("auto", "RANK=one WORLD_SIZE=4", "no number"),
            ("auto", "RANK=1", "how many"),
            ("4/4", "", "i/N"),
            ("auto/0", "", "auto/N"),
            ("half", "", "i/N"),
        ] {
            let error = share(text, env).unwrap_err();
            assert!(error.contains(word), "{text} {env}: {error}");
        }
    }
}
