//! Reading a curve back, and comparing two bit for bit.

use std::{collections::BTreeMap, path::Path};

use super::replay;
use crate::Result;

/// The bits of `name` by step, in the file of one rank. After a resume, what was recorded of later steps is void.
///
/// # Errors
/// `NotFound` or `Io` for a file that can't be read, `Corrupt` for a line that no crash can have cut.
pub fn curve(path: &Path, name: &str) -> Result<BTreeMap<u64, u32>> {
    let mut bits = BTreeMap::new();
    replay(path, &mut |record, begins| {
        if begins {
            bits.retain(|step, _| *step <= record.step);
        } else if record.name == name {
            let found = record.bits.as_deref().and_then(|hex| u32::from_str_radix(hex, 16).ok());
            bits.extend(found.map(|found| (record.step, found)));
        }
    })?;
    Ok(bits)
}

/// Where two curves part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Apart {
    /// The first step that differs or that only one has.
    pub step: u64,
    /// The first curve's bits.
    pub first: Option<u32>,
    /// The second's.
    pub second: Option<u32>,
}

/// The first step at which two curves differ in any bit, or that only one of them has.
#[must_use]
pub fn first_difference(a: &BTreeMap<u64, u32>, b: &BTreeMap<u64, u32>) -> Option<Apart> {
    let steps: std::collections::BTreeSet<u64> = a.keys().chain(b.keys()).copied().collect();
    let part = |step: u64| Apart { step, first: a.get(&step).copied(), second: b.get(&step).copied() };
    steps.into_iter().map(part).find(|apart| apart.first != apart.second)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, sync::Arc};

    use super::*;
    use crate::{
        ErrorKind,
        metrics::{FixedClock, Flops, Pace, Recorder, Save, Setting, Speed, Start, Step, line},
    };

    const LOSS: &str = "loss_metrics/global_avg_loss";

    fn measured(step: u64, loss: f32) -> Step {
        Step {
            step,
            loss,
            grad_norm: 1.25,
            lr: 1e-3,
            tokens: 4096,
            seconds: 0.25,
            data_seconds: 0.01,
            stall_seconds: 0.0004,
            pace: Pace::default(),
        }
    }

    fn recorder(folder: &Path, start: &Start) -> Recorder {
        let flops = Some(Flops { per_token: 1e6, peak: Some(1e11), ranks: 2 });
        let setting = Setting { rank: 0, log_freq: 2, flops, tensorboard: false };
        Recorder::open(folder, setting, start, Arc::new(FixedClock::new(1_000_000, 10))).unwrap()
    }

    #[test]
    fn a_resumed_run_has_one_curve_and_it_can_be_compared_to_the_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank_00000.jsonl");
        let mut console = Vec::new();
        let mut first = recorder(folder.path(), &Start::default());
        [5.0, 4.5, 4.0]
            .into_iter()
            .zip(1..)
            .for_each(|(loss, step)| first.step(&measured(step, loss), &mut console).unwrap());
        drop(first);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"step\":4,\"ti").unwrap();
        let resumed = Start {
            incarnation: 1,
            resumed_from: Some((2, "step-2".to_owned())),
            restart_us: 500_000,
            ..Start::default()
        };
        let mut second = recorder(folder.path(), &resumed);
        second.step(&measured(3, f32::from_bits(0x4080_0001)), &mut console).unwrap();
        second.step(&measured(4, f32::NAN), &mut console).unwrap();
        second
            .save(&Save {
                step: 4,
                bytes: 1 << 30,
                shared: 4096,
                stage_seconds: 0.1,
                write_seconds: 2.0,
                commit_seconds: 0.003,
            })
            .unwrap();
        assert_eq!((second.summary().steps, second.summary().saves), (2, 1));

        let bits = curve(&path, LOSS).unwrap();
        let expected =
            [(1, 5.0_f32.to_bits()), (2, 4.5_f32.to_bits()), (3, 0x4080_0001), (4, f32::NAN.to_bits())];
        assert_eq!(bits, BTreeMap::from(expected));
        let mut other = bits.clone();
        assert_eq!(first_difference(&bits, &other), None);
        other.insert(3, 0x4080_0000);
        let apart = Apart { step: 3, first: Some(0x4080_0001), second: Some(0x4080_0000) };
        assert_eq!(first_difference(&bits, &other), Some(apart));

        let text = fs::read_to_string(&path).unwrap();
        for record in [
            r#""name":"loss_metrics/global_avg_loss","value":4.0000005,"bits":"40800001"}"#,
            r#""name":"loss_metrics/global_avg_loss","value":null,"bits":"7fc00000"}"#,
            r#"{"step":2,"time_us":1000000,"rank":0,"name":"resumed_from","value":"step-2"}"#,
            r#""name":"restart(s)","value":0.5}"#,
            r#""name":"checkpoint/bandwidth(GiB/s)","value":0.5}"#,
            r#""name":"checkpoint/shared_bytes","value":4096}"#,
            r#""name":"throughput(tps)","value":16384.0}"#,
            r#""name":"tflops","value":0.008192}"#,
            r#""name":"mfu(%)","value":8.192}"#,
            r#""name":"time_metrics/data_loading(%)","value":4.0}"#,
        ] {
            assert!(text.contains(record), "{record} is not in {text}");
        }
        // The first step after a start is printed, then every second one.
        let printed = String::from_utf8(console).unwrap();
        let steps: Vec<&str> = printed.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
        assert_eq!(steps, ["1", "2", "3", "4"]);
    }

    #[test]
    fn a_line_that_no_crash_cut_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank_00000.jsonl");
        let mut recorder = recorder(folder.path(), &Start::default());
        recorder.step(&measured(1, 1.0), &mut Vec::new()).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("oops\n{}", &whole[whole.find('\n').unwrap() + 1..])).unwrap();
        let error = curve(&path, LOSS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("rank_00000.jsonl:1 is no record"), "{error}");
    }

    #[test]
    fn the_console_line_has_the_fields_people_know() {
        let known = Speed { tps: 16_384.0, tflops: Some(0.008_192), mfu: Some(0.081_92) };
        assert_eq!(
            line(&measured(12, 5.125), &known, 120 << 20),
            "step    12  loss  5.125000  grad_norm   1.2500  memory 120 MiB  tps 16,384  tflops 0.0082  mfu 8.19%  ckpt \
             stall 0.4 ms"
        );
        let unknown = Speed { tps: 16_384.0, tflops: None, mfu: None };
        assert!(line(&measured(12, 5.125), &unknown, 120 << 20).contains("  tps 16,384  ckpt stall"));
    }
}
