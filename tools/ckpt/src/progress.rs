//! Progress on stderr: a bar on a terminal (first shown after 250 ms, at most 10 a second), a line every 10 s
//! elsewhere, JSON lines on request, or nothing.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dcp::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::units;

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// A bar on a terminal, lines elsewhere.
    Auto,
    /// A bar.
    Bar,
    /// A line every 10 s.
    Plain,
    /// A JSON record twice a second.
    Json,
    /// Nothing.
    None,
}

/// The watcher that `mode` asks for.
pub(crate) fn watcher(mode: Mode, quiet: bool) -> Box<dyn Progress> {
    let terminal = std::io::stderr().is_terminal();
    match mode {
        Mode::None => Box::new(dcp::Silent),
        Mode::Auto if quiet => Box::new(dcp::Silent),
        Mode::Bar => Box::new(Bar::default()),
        Mode::Auto if terminal => Box::new(Bar::default()),
        Mode::Auto | Mode::Plain => Box::new(Lines::new(Duration::from_secs(10), plain_line)),
        Mode::Json => Box::new(Lines::new(Duration::from_millis(500), json_line)),
    }
}

const FIRST_SHOWN_AFTER: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Bar(Mutex<Option<Running>>);

struct Running {
    bar: ProgressBar,
    since: Instant,
    hidden: bool,
}

impl Progress for Bar {
    fn begin(&self, phase: &str, total_bytes: u64) {
        let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(
            "{prefix:>10} [{bar:24}] {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  eta {eta}",
        );
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(phase.to_owned());
        if let Ok(mut running) = self.0.lock() {
            *running = Some(Running { bar, since: Instant::now(), hidden: true });
        }
    }

    fn advance(&self, bytes: u64) {
        let Ok(mut running) = self.0.lock() else { return };
        let Some(running) = running.as_mut() else { return };
        if running.hidden && running.since.elapsed() > FIRST_SHOWN_AFTER {
            running.hidden = false;
            running.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        running.bar.inc(bytes);
    }

    fn end(&self) {
        if let Some(running) = self.0.lock().ok().and_then(|mut running| running.take()) {
            running.bar.finish_and_clear();
        }
    }
}

/// Where a phase stands.
struct Standing {
    phase: String,
    done: u64,
    total: u64,
    since: Instant,
    last: Instant,
}

impl Standing {
    fn eta(&self) -> Option<Duration> {
        let seconds = self.since.elapsed().as_secs_f64();
        let left = self.total.saturating_sub(self.done);
        #[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
        let eta = (self.done > 0).then(|| seconds * left as f64 / self.done as f64);
        eta.and_then(|eta| Duration::try_from_secs_f64(eta).ok())
    }
}

struct Lines {
    every: Duration,
    render: fn(&Standing) -> String,
    standing: Mutex<Option<Standing>>,
}

impl Lines {
    const fn new(every: Duration, render: fn(&Standing) -> String) -> Self {
        Self { every, render, standing: Mutex::new(None) }
    }
}

impl Progress for Lines {
    fn begin(&self, phase: &str, total_bytes: u64) {
        let now = Instant::now();
        if let Ok(mut standing) = self.standing.lock() {
            *standing = Some(Standing {
                phase: phase.to_owned(),
                done: 0,
                total: total_bytes,
                since: now,
                last: now,
            });
        }
    }

    fn advance(&self, bytes: u64) {
        let Ok(mut standing) = self.standing.lock() else { return };
        let Some(standing) = standing.as_mut() else { return };
        standing.done = standing.done.saturating_add(bytes);
        if standing.last.elapsed() >= self.every {
            standing.last = Instant::now();
            anstream::eprintln!("{}", (self.render)(standing));
        }
    }

    fn end(&self) {
        if let Ok(mut standing) = self.standing.lock() {
            *standing = None;
        }
    }
}

fn plain_line(at: &Standing) -> String {
    let eta = at.eta().map_or_else(String::new, |eta| format!("  eta {} s", eta.as_secs()));
    format!("{}  {} of {}{eta}", at.phase, units::bytes(at.done), units::bytes(at.total))
}

fn json_line(at: &Standing) -> String {
    serde_json::json!({
        "message_type": "status", "phase": at.phase, "bytes_done": at.done, "bytes_total": at.total,
        "seconds_elapsed": at.since.elapsed().as_secs_f64(), "seconds_left": at.eta().map(|eta| eta.as_secs_f64()),
    })
    .to_string()
}
