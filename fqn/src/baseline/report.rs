//! What a check found, as data.

use serde::Serialize;

use crate::TensorId;

/// Kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// In the baseline, not in the checkpoint.
    Missing,
    /// In the checkpoint, not in the baseline.
    Extra,
    /// In both, under different names.
    Renamed,
    /// In both, under another layer index.
    Renumbered,
    /// One name, different bytes.
    Colliding,
    /// A wrapper's segment in a name.
    ForbiddenPrefix,
    /// Shapes differ.
    Shape,
    /// Element types differ.
    Dtype,
    /// Parameter in one, buffer in the other.
    Role,
}

/// One thing that does not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind.
    pub code: Code,
    /// The tensor: as the baseline names it, or as the checkpoint does if only that has it.
    pub id: TensorId,
    /// What the checkpoint calls it, if something else.
    pub observed: Option<TensorId>,
    /// What is the matter.
    pub detail: String,
    /// What to do.
    pub advice: String,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// `fqn.check/1`.
    pub schema: &'static str,
    /// Tensors in the baseline.
    pub baseline: usize,
    /// Tensors in the checkpoint that were compared.
    pub observed: usize,
    /// Tensors that agree in everything.
    pub agreeing: usize,
    /// What does not.
    pub findings: Vec<Finding>,
}

impl Code {
    /// Text of the code: `forbidden-prefix`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Renamed => "renamed",
            Self::Renumbered => "renumbered",
            Self::Colliding => "colliding",
            Self::ForbiddenPrefix => "forbidden-prefix",
            Self::Shape => "shape",
            Self::Dtype => "dtype",
            Self::Role => "role",
        }
    }
}

impl CheckReport {
    /// Whether nothing was found.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Findings of one kind.
    pub fn of(&self, code: Code) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.code == code)
    }
}

impl Finding {
    pub(super) fn new(
        code: Code,
        id: TensorId,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { code, id, observed: None, detail: detail.into(), advice: advice.into() }
    }

    pub(super) fn seen_as(mut self, observed: TensorId) -> Self {
        self.observed = Some(observed);
        self
    }
}
