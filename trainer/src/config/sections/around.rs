//! Sections about what is around the training: what is recorded, how ranks talk, faults on purpose.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    super::lapse,
    choices::{CommMode, FlopsFormula, MessageFault, TransportKind},
};

/// What is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Metrics {
    pub folder: String,
    pub log_freq: u64,
    pub tensorboard: bool,
    pub peak_tflops: f64,
    pub flops_formula: FlopsFormula,
    pub flops_per_token: f64,
    pub trace_first: u64,
    pub trace_steps: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            folder: "metrics".to_owned(),
            log_freq: 10,
            tensorboard: false,
            peak_tflops: 0.0,
            flops_formula: FlopsFormula::Palm,
            flops_per_token: 0.0,
            trace_first: 0,
            trace_steps: 1,
        }
    }
}

/// The transport and its time limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Comm {
    pub transport: TransportKind,
    pub mode: CommMode,
    pub buffers: u64,
    #[serde(with = "lapse")]
    pub start_timeout: Duration,
    #[serde(with = "lapse")]
    pub step_timeout: Duration,
    pub dump_folder: String,
    pub dump_actions: u64,
}

impl Default for Comm {
    fn default() -> Self {
        Self {
            transport: TransportKind::Auto,
            mode: CommMode::Async,
            buffers: 32,
            start_timeout: Duration::from_secs(300),
            step_timeout: Duration::from_secs(100),
            dump_folder: "dumps".to_owned(),
            dump_actions: 64,
        }
    }
}

/// Faults on purpose. Steps count from 1; 0 means never. A rank dies or hangs in the run's first incarnation only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Debug {
    pub slow_save_step: u64,
    #[serde(with = "lapse")]
    pub slow_save: Duration,
    pub fail_save_step: u64,
    pub fail_save_rank: u64,
    pub nan_step: u64,
    pub nan_rank: u64,
    pub die_step: u64,
    pub die_rank: u64,
    pub hang_step: u64,
    pub hang_rank: u64,
    pub tensors_step: u64,
    pub tensors_folder: String,
    pub virtual_device: String,
    pub message_fault: MessageFault,
    pub message_step: u64,
    pub message_rank: u64,
}

impl Default for Debug {
    fn default() -> Self {
        Self {
            slow_save_step: 0,
            slow_save: Duration::ZERO,
            fail_save_step: 0,
            fail_save_rank: 0,
            nan_step: 0,
            nan_rank: 0,
            die_step: 0,
            die_rank: 0,
            hang_step: 0,
            hang_rank: 0,
            tensors_step: 0,
            tensors_folder: "tensors".to_owned(),
            virtual_device: OFF.to_owned(),
            message_fault: MessageFault::None,
            message_step: 0,
            message_rank: 0,
        }
    }
}

/// What `debug.virtual_device` is without one.
const OFF: &str = "off";

impl Debug {
    /// Whether actions sleep instead of computing.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.virtual_device != OFF
    }
}
