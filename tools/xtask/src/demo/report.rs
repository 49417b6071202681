//! What was done and found: printed as it happens, and once more as a table.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;

/// A check and its verdict.
#[derive(Debug)]
struct Check {
    stage: usize,
    what: String,
    passed: bool,
}

/// A stage and when it began.
#[derive(Debug)]
struct Stage {
    title: &'static str,
    began: Instant,
    took: Duration,
}

/// Everything that goes into the closing table.
#[derive(Debug, Default)]
pub(crate) struct Report {
    stages: Vec<Stage>,
    checks: Vec<Check>,
    sizes: Vec<(String, u64)>,
}

impl Report {
    /// Begins a stage.
    pub(crate) fn stage(&mut self, number: usize, title: &'static str) {
        self.end_stage();
        println!("\n== {number}. {title}");
        self.stages.push(Stage { title, began: Instant::now(), took: Duration::ZERO });
    }

    fn end_stage(&mut self) {
        if let Some(stage) = self.stages.last_mut() {
            stage.took = stage.began.elapsed();
        }
    }

    /// Records a check; `detail` is shown when it failed.
    pub(crate) fn check(&mut self, what: impl Into<String>, passed: bool, detail: &str) {
        let what = what.into();
        println!("{}  {what}", if passed { "pass" } else { "FAIL" });
        if !passed {
            detail.lines().for_each(|line| println!("      {line}"));
        }
        self.checks.push(Check { stage: self.stages.len(), what, passed });
    }

    /// Records how much disk something takes.
    pub(crate) fn size(&mut self, what: &str, bytes: u64) {
        self.sizes.push((what.to_owned(), bytes));
    }

    /// Prints the table; an error if a check failed.
    pub(crate) fn close(&mut self, folder: &Path) -> Result<(), Error> {
        self.end_stage();
        println!("\n== what was done");
        for (number, stage) in (1..).zip(&self.stages) {
            let of_stage = || self.checks.iter().filter(|check| check.stage == number);
            let (passed, all) = (of_stage().filter(|check| check.passed).count(), of_stage().count());
            let verdict = if passed == all && all > 0 { "pass" } else { "FAIL" };
            println!(
                "{verdict}  {number}. {:<58}  {passed:>2} of {all:>2} checks  {:>6.1} s",
                stage.title,
                stage.took.as_secs_f64()
            );
        }
        for (what, bytes) in &self.sizes {
            println!("size  {what:<61}  {:>18}", mebibytes(*bytes));
        }
        println!("kept  {}", folder.display());
        self.verdict()
    }

    fn verdict(&self) -> Result<(), Error> {
        let failed: Vec<_> = self.checks.iter().filter(|check| !check.passed).collect();
        if failed.is_empty() && !self.checks.is_empty() {
            println!("all {} checks passed", self.checks.len());
            return Ok(());
        }
        failed.iter().for_each(|check| println!("FAIL  {}. {}", check.stage, check.what));
        Err(Error::Checks { count: failed.len(), what: "the demo's checks".to_owned() })
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_check_fails_the_whole() {
        let mut report = Report::default();
        report.stage(1, "a");
        report.check("good", true, "");
        assert!(report.close(Path::new(".")).is_ok());
        report.check("bad", false, "why");
        assert!(report.close(Path::new(".")).is_err());
    }

    #[test]
    fn a_demo_that_checked_nothing_has_not_passed() {
        let mut report = Report::default();
        report.stage(1, "a");
        assert!(report.close(Path::new(".")).is_err());
    }
}
