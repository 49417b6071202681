//! What people read: a line per step, and a summary at the end.

use std::fmt;

use super::Step;

/// How fast a step was.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Speed {
    /// Tokens a second, of all ranks.
    pub tps: f64,
    /// Tera-operations a second of one rank, where a token's operations are known.
    pub tflops: Option<f64>,
    /// Share of the card's rate, where that is known.
    pub mfu: Option<f64>,
}

/// The line of a step: TorchTitan's order (step, loss, gradient norm, memory, tokens a second, tera-operations, MFU),
/// then the stall. What is not known is left out.
#[must_use]
pub fn line(step: &Step, speed: &Speed, resident: u64) -> String {
    let tflops = speed.tflops.map_or_else(String::new, |tflops| format!("  tflops {}", tera(tflops)));
    let mfu = speed.mfu.map_or_else(String::new, |mfu| format!("  mfu {:.2}%", 100.0 * mfu));
    format!(
        "step {:>5}  loss {:>9.6}  grad_norm {:>8.4}  memory {}  tps {}{tflops}{mfu}  ckpt stall {}",
        step.step,
        step.loss,
        step.grad_norm,
        size(resident),
        thousands(speed.tps),
        time(step.stall_seconds)
    )
}

/// Small models on slow processors have thousandths.
fn tera(tflops: f64) -> String {
    if tflops < 0.1 { format!("{tflops:.4}") } else { format!("{tflops:.2}") }
}

fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let first = digits.len() % 3;
    let (head, tail) = digits.split_at_checked(first).unwrap_or((&digits, ""));
    let groups = tail.as_bytes().chunks(3).filter_map(|group| std::str::from_utf8(group).ok());
    let parts: Vec<&str> = Some(head).filter(|head| !head.is_empty()).into_iter().chain(groups).collect();
    parts.join(",")
}

fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// What a run did, from its start or resume on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// The last of them.
    pub last_step: u64,
    /// Tokens of all ranks.
    pub tokens: u64,
    /// Time in steps.
    pub seconds: f64,
    /// Checkpoints committed.
    pub saves: u64,
    /// Time that steps waited for checkpoints.
    pub stall_seconds: f64,
    /// Most resident bytes.
    pub most_resident: u64,
    /// The last loss.
    pub loss: Option<f32>,
}

impl Summary {
    pub(super) fn step(&mut self, step: &Step, most_resident: u64) {
        self.steps += 1;
        self.last_step = step.step;
        self.tokens += step.tokens;
        self.seconds += step.seconds;
        self.stall_seconds += step.stall_seconds;
        self.most_resident = self.most_resident.max(most_resident);
        self.loss = Some(step.loss);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tps = if self.seconds > 0.0 { self.tokens as f64 / self.seconds } else { 0.0 };
        let share = if self.seconds > 0.0 { 100.0 * self.stall_seconds / self.seconds } else { 0.0 };
        write!(
            f,
            "done  {} steps to step {}  {} tokens",
            self.steps,
            self.last_step,
            thousands(self.tokens as f64)
        )?;
        write!(f, "  tps {}  memory {}", thousands(tps), size(self.most_resident))?;
        write!(f, "  checkpoints {}  stall {} ({share:.2} %)", self.saves, time(self.stall_seconds))?;
        self.loss.map_or(Ok(()), |loss| write!(f, "  loss {loss:.6}"))
    }
}
