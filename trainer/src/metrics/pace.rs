//! [`Pace`]: what one step took on one rank, action by action and wait by wait.
//!
//! Invariants: spans of actions follow each other without overlap; `messages` and `collectives` are the times within the
//! transport, of which those within a computation count as busy (a rank that gathers weights is not idle for the
//! schedule) but as communication too.

use schedule::{Action, Step};

/// One action, from its begin to the begin of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// What was done.
    pub action: Action,
    /// Microseconds since 1970.
    pub begin_us: u64,
    /// Its end.
    pub end_us: u64,
}

impl Span {
    /// Its length in seconds.
    #[must_use]
    pub const fn seconds(&self) -> f64 {
        self.end_us.saturating_sub(self.begin_us) as f64 / 1e6
    }
}

/// What a stage took in a step. An action's time has the collectives within it; how long forwards and gradients of each
/// kind took by themselves is in the stage's own account (`pipeline/stage_N/...` in the records).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StagePace {
    /// Its index.
    pub stage: usize,
    /// Seconds of all its forwards.
    pub forward: f64,
    /// Of its input gradients.
    pub input: f64,
    /// Of its weight gradients.
    pub weight: f64,
    /// Of its full backwards.
    pub backward: f64,
    /// Of composites of its forwards and another stage's backwards.
    pub overlap: f64,
    /// Most of its microbatches alive at once.
    pub live: usize,
}

impl StagePace {
    /// All its computations.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.forward + self.input + self.weight + self.backward + self.overlap
    }
}

/// A step on a rank.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pace {
    /// Every action, in order.
    pub spans: Vec<Span>,
    /// Seconds in sends, receives and flushes.
    pub messages: f64,
    /// Seconds in collectives of all groups.
    pub collectives: f64,
    /// By stage.
    pub stages: Vec<StagePace>,
}

impl Pace {
    /// Sums spans up.
    #[must_use]
    pub fn new(spans: Vec<Span>, messages: f64, collectives: f64) -> Self {
        let mut stages: Vec<StagePace> = Vec::new();
        for span in spans.iter().filter(|span| span.action.computes()) {
            let stage = span.action.stage;
            let at = stages.iter().position(|it| it.stage == stage).unwrap_or_else(|| {
                stages.push(StagePace { stage, ..StagePace::default() });
                stages.len() - 1
            });
            let Some(it) = stages.get_mut(at) else { continue };
            match span.action.step {
                Step::F(_) => it.forward += span.seconds(),
                Step::I(_) => it.input += span.seconds(),
                Step::W(_) => it.weight += span.seconds(),
                Step::B(_) => it.backward += span.seconds(),
                _ => it.overlap += span.seconds(),
            }
        }
        stages.sort_by_key(|it| it.stage);
        for it in &mut stages {
            it.live = live(&spans, it.stage);
        }
        Self { spans, messages, collectives, stages }
    }

    /// From the first action's begin to the last one's end, in seconds.
    #[must_use]
    pub fn pipeline(&self) -> f64 {
        let begin = self.spans.first().map_or(0, |span| span.begin_us);
        let end = self.spans.last().map_or(0, |span| span.end_us);
        end.saturating_sub(begin) as f64 / 1e6
    }

    /// Seconds of computations.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.stages.iter().map(StagePace::seconds).sum()
    }

    /// Seconds of communication.
    #[must_use]
    pub fn communication(&self) -> f64 {
        self.messages + self.collectives
    }
}

/// Most microbatches of a stage alive at once: from their F to their B or W.
fn live(spans: &[Span], stage: usize) -> usize {
    let own = spans.iter().flat_map(|span| span.action.parts()).filter(|part| part.stage == stage);
    let (mut now, mut most) = (0_usize, 0);
    for part in own {
        match part.step {
            Step::F(_) => now += 1,
            Step::B(_) | Step::W(_) => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_add_up_by_stage_and_kind() {
        let span = |text: &str, begin_us, end_us| Span { action: text.parse().unwrap(), begin_us, end_us };
        let pace = Pace::new(
            vec![
                span("1F0", 0, 100),
                span("1SEND_F0", 100, 150),
                span("0F0", 200, 300),
                span("1I0", 300, 600),
                span("1W0", 600, 800),
                span("0B0", 800, 1_000),
            ],
            1e-4,
            2e-4,
        );
        assert_eq!(pace.stages.iter().map(|it| it.stage).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(pace.stages.iter().map(|it| it.live).collect::<Vec<_>>(), [1, 1]);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(pace.pipeline(), 1e-3) && near(pace.busy(), 9e-4) && near(pace.communication(), 3e-4));
        assert!(
            near(pace.stages[1].input, 3e-4)
                && near(pace.stages[1].weight, 2e-4)
                && near(pace.stages[0].backward, 2e-4)
        );
    }
}
