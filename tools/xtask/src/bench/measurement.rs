//! What `tests/python/measured.py` says about a command.

use serde::Deserialize;

/// One run of a command.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Measured {
    /// Exit code.
    pub(super) code: i32,
    /// The last line that it printed.
    pub(super) said: String,
    /// Wall time.
    pub(super) seconds: f64,
    /// Peak resident memory.
    pub(super) peak_bytes: u64,
}

impl Measured {
    /// From the JSON on the last line of `output`.
    pub(super) fn read(output: &[u8]) -> Result<Self, serde_json::Error> {
        let line = output.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice(line)
    }

    /// With the time that the command printed, which leaves out its start-up, in place of ours.
    pub(super) fn by_its_own_clock(mut self) -> Self {
        self.seconds = self.said.parse().unwrap_or(self.seconds);
        self
    }
}

/// The fastest run, with the largest memory of any.
pub(super) fn best(runs: &[Measured]) -> Measured {
    let none = Measured { code: 0, said: String::new(), seconds: f64::NAN, peak_bytes: 0 };
    runs.iter().fold(none, |best, run| Measured {
        seconds: best.seconds.min(run.seconds),
        peak_bytes: best.peak_bytes.max(run.peak_bytes),
        ..best
    })
}

/// Whole mebibytes, rounded up.
pub(super) fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: f64, peak_bytes: u64) -> Measured {
        Measured { code: 0, said: String::new(), seconds, peak_bytes }
    }

    #[test]
    fn the_best_of_several_is_the_fastest_time_and_the_largest_memory() {
        let best = best(&[run(2.0, 7), run(1.5, 5), run(3.0, 6)]);
        assert!((best.seconds - 1.5).abs() < f64::EPSILON);
        assert_eq!(best.peak_bytes, 7);
    }

    #[test]
    fn the_last_line_is_read_whatever_comes_before_it() {
        let output = b"noise\n{\"code\": 0, \"said\": \"1.25\", \"seconds\": 3.5, \"peak_bytes\": 9}\n";
        let measured = Measured::read(output).unwrap().by_its_own_clock();
        assert!((measured.seconds - 1.25).abs() < f64::EPSILON);
    }
}
