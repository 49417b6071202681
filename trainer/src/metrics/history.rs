//! [`History`]: what all ranks of a run recorded, read back: facts, and numbers by step.
//!
//! Invariant: a step that was done again after a resume is there once, as it was done last.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{percentile, replay, spread};
use crate::{Error, ErrorKind, Result};

/// One rank's records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankHistory {
    /// The rank.
    pub rank: usize,
    /// What is said once for each start: the newest.
    pub facts: BTreeMap<String, serde_json::Value>,
    /// Numbers by step and name.
    pub steps: BTreeMap<u64, BTreeMap<String, f64>>,
    /// Starts.
    pub incarnations: usize,
}

/// A run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// By rank, ascending.
    pub ranks: Vec<RankHistory>,
    /// Where it was read.
    pub folder: PathBuf,
}

impl RankHistory {
    /// Reads one rank's file.
    ///
    /// # Errors
    /// As [`replay()`].
    pub fn read(path: &Path) -> Result<Self> {
        let mut found = Self::default();
        replay(path, &mut |record, begins| {
            found.rank = record.rank;
            if begins {
                found.incarnations += 1;
                found.steps.retain(|step, _| *step <= record.step);
            } else if let Some(number) = record.value.as_f64().filter(|_| !record.name.starts_with("run/")) {
                found.steps.entry(record.step).or_default().insert(record.name, number);
            } else if !record.value.is_null() {
                found.facts.insert(record.name, record.value);
            }
        })?;
        // What is recorded at a resume is of no step.
        found.steps.retain(|_, values| values.contains_key(STEP_TIME));
        Ok(found)
    }

    /// The values of `name`, step by step.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.steps.values().filter_map(|values| values.get(name).copied()).collect()
    }

    /// The median of `name` over its steps; the first step, which sets everything up, is left out where there are more.
    #[must_use]
    pub fn median(&self, name: &str) -> Option<f64> {
        let values = self.values(name);
        let mut values = values.get(usize::from(values.len() > 1)..)?.to_vec();
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then(|| percentile(&values, 0.5))
    }

    /// A fact as text.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<String> {
        self.facts.get(name).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Stages that it has numbers of.
    #[must_use]
    pub fn stages(&self) -> Vec<usize> {
        let names = self.steps.values().next_back().into_iter().flat_map(BTreeMap::keys);
        let stage =
            |name: &String| name.strip_prefix("pipeline/stage_")?.strip_suffix("/peak_live")?.parse().ok();
        names.filter_map(stage).collect()
    }
}

/// Every step has it.
pub const STEP_TIME: &str = "time_metrics/end_to_end(s)";

impl History {
    /// Reads a folder of metrics, the folder of a run that has one named `metrics`, or one rank's file.
    ///
    /// # Errors
    /// `NotFound` where there are no metrics; as [`replay()`].
    pub fn read(path: &Path) -> Result<Self> {
        if path.is_file() {
            let folder = path.parent().unwrap_or(path).to_path_buf();
            return Ok(Self { ranks: vec![RankHistory::read(path)?], folder });
        }
        let folders = [path.to_path_buf(), path.join("metrics")];
        for folder in folders {
            let files = rank_files(&folder)?;
            if !files.is_empty() {
                let mut ranks =
                    files.iter().map(|file| RankHistory::read(file)).collect::<Result<Vec<_>>>()?;
                ranks.sort_by_key(|rank| rank.rank);
                return Ok(Self { ranks, folder });
            }
        }
        Err(Error::new(
            ErrorKind::NotFound,
            format!("no metrics in {}: no file such as rank_00000.jsonl", path.display()),
        )
        .hint("give the folder that metrics.folder named in the run's configuration"))
    }

    /// A fact of the run: the same on all ranks.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<String> {
        self.ranks.first()?.fact(name)
    }

    /// Times of the steps on the first rank, the first step left out where there are more.
    pub fn step_times(&self) -> Vec<f64> {
        let times = self.ranks.first().map(|rank| rank.values(STEP_TIME)).unwrap_or_default();
        times.get(usize::from(times.len() > 1)..).unwrap_or_default().to_vec()
    }

    /// How far the steps' times lie apart; see [`spread()`].
    #[must_use]
    pub fn spread(&self) -> f64 {
        spread(self.step_times().into_iter())
    }

    /// Idle share of all ranks' time in the pipeline, the median over steps: 1 − Σ busy / (ranks · longest span).
    #[must_use]
    pub fn bubble(&self) -> Option<f64> {
        let steps: Vec<u64> = self.ranks.first()?.steps.keys().copied().collect();
        let one = |step: &u64| {
            let of = |name: &str| -> Option<Vec<f64>> {
                self.ranks.iter().map(|rank| rank.steps.get(step)?.get(name).copied()).collect()
            };
            let (busy, span) = (of("pipeline/busy(s)")?, of("pipeline/span(s)")?);
            let longest = span.iter().copied().fold(0.0, f64::max);
            (longest > 0.0).then(|| (1.0 - busy.iter().sum::<f64>() / (longest * busy.len() as f64)).max(0.0))
        };
        let mut found: Vec<f64> = steps.iter().skip(usize::from(steps.len() > 1)).filter_map(one).collect();
        found.sort_by(f64::total_cmp);
        (!found.is_empty()).then(|| percentile(&found, 0.5))
    }

    /// What each stage took in a step, by stage: [`Self::stage_times`], added up.
    #[must_use]
    pub fn stage_seconds(&self) -> BTreeMap<usize, f64> {
        self.stage_times().into_iter().map(|(stage, times)| (stage, times.iter().sum())).collect()
    }

    /// What forward, gradients of inputs and gradients of weights of each stage took in a step, by stage: medians, averaged over the ranks
    /// that have it. A backward that was not split counts as gradients of inputs.
    #[must_use]
    pub fn stage_times(&self) -> BTreeMap<usize, [f64; 3]> {
        let mut found: BTreeMap<usize, Vec<[f64; 3]>> = BTreeMap::new();
        for rank in &self.ranks {
            for stage in rank.stages() {
                let of = |kind| rank.median(&format!("pipeline/stage_{stage}/{kind}(s)")).unwrap_or(0.0);
                let times = ["forward", "input_gradients", "weight_gradients"].map(of);
                found.entry(stage).or_default().push(times);
            }
        }
        let mean = |all: Vec<[f64; 3]>| {
            let sum =
                all.iter().fold([0.0; 3], |sum, one| [sum[0] + one[0], sum[1] + one[1], sum[2] + one[2]]);
            sum.map(|sum| sum / all.len().max(1) as f64)
        };
        found.into_iter().map(|(stage, all)| (stage, mean(all))).collect()
    }

    /// Most microbatches of a stage alive at once, by stage.
    #[must_use]
    pub fn live(&self) -> BTreeMap<usize, u64> {
        let mut found = BTreeMap::new();
        for rank in &self.ranks {
            for stage in rank.stages() {
                let most =
                    rank.values(&format!("pipeline/stage_{stage}/peak_live")).into_iter().fold(0.0, f64::max);
                let entry = found.entry(stage).or_insert(0);
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
                let most = most as u64;
                *entry = most.max(*entry);
            }
        }
        found
    }

    /// Layers of every stage, as the run recorded them.
    #[must_use]
    pub fn layers(&self) -> Option<Vec<u64>> {
        self.fact("run/layers")?.split(',').map(|text| text.trim().parse().ok()).collect()
    }
}

fn rank_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::from(error).at(folder.display())),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Error::from(error).at(folder.display()))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("rank_") && name.ends_with(".jsonl") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
