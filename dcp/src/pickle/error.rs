//! What can be wrong with a pickle: each error says what, at which byte, and why.

use std::fmt;

use super::globals::Context;

/// A pickle that was refused. Nothing in it was run: no pickle ever runs here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PickleError {
    /// Offset of the opcode concerned, in bytes from the start of the pickle; absent where the whole is meant.
    pub at: Option<u64>,
    /// What is wrong.
    #[source]
    pub kind: PickleErrorKind,
}

impl PickleError {
    pub(super) fn at(offset: usize, kind: PickleErrorKind) -> Self {
        Self { at: Some(offset as u64), kind }
    }

    pub(super) fn whole(kind: PickleErrorKind) -> Self {
        Self { at: None, kind }
    }
}

impl fmt::Display for PickleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "pickle refused at byte {at}"),
            None => write!(f, "pickle refused"),
        }
    }
}

/// The ways in which a pickle is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleErrorKind {
    /// It names something whose only use in a pickle is to run code.
    #[error("this pickle would run code: it names `{module}.{name}`; nothing was run")]
    RunsCode {
        /// Python module.
        module: String,
        /// Name within it.
        name: String,
    },
    /// It names something that is not on the list for its context.
    #[error("`{module}.{name}` is not among the names expected in {context}; nothing was run")]
    NotAllowed {
        /// Python module.
        module: String,
        /// Name within it.
        name: String,
        /// What was being read.
        context: Context,
    },
    /// It calls, or sets the state of, something that is not a named class or function.
    #[error("{op} acts on {found}, which no pickle written by torch does; nothing was run")]
    NotCallable {
        /// Opcode.
        op: &'static str,
        /// What it acts on.
        found: &'static str,
    },
    /// A call whose result is thrown away: it is there for its effect (a state setter).
    #[error("a call is made only for its effect, which cannot be kept as data; nothing was run")]
    EffectOnly,
    /// The bytes end within an opcode or before STOP.
    #[error(
        "{op} needs {wanted} bytes, but {left} are left: the pickle is cut short or its lengths are wrong"
    )]
    Truncated {
        /// Opcode, or what was expected instead of one.
        op: &'static str,
        /// Bytes that it declares or needs.
        wanted: u64,
        /// Bytes that there are.
        left: u64,
    },
    /// The bytes go on after STOP.
    #[error("{0} bytes follow the end of the pickle")]
    Trailing(u64),
    /// Not an opcode of protocols 0 to 5.
    #[error("byte {0:#04x} is not a pickle opcode: this is not a pickle, or it is damaged")]
    UnknownOpcode(u8),
    /// A protocol that does not exist yet.
    #[error("pickle protocol {0} is not one of 0 to 5")]
    Protocol(u8),
    /// An opcode whose meaning lies outside the file.
    #[error("{op} refers to {what}, which lies outside this file")]
    External {
        /// Opcode.
        op: &'static str,
        /// What it refers to.
        what: &'static str,
    },
    /// An opcode finds fewer values, or others, than it needs.
    #[error("{op} finds {found} where it needs {needed}")]
    Stack {
        /// Opcode.
        op: &'static str,
        /// What it needs.
        needed: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A reference to a memo entry that was never made.
    #[error("memo entry {0} is used but was never stored")]
    Memo(u64),
    /// A literal that cannot be read.
    #[error("{op} holds {why}")]
    Literal {
        /// Opcode.
        op: &'static str,
        /// What is wrong with the literal.
        why: &'static str,
    },
    /// A value that contains itself.
    #[error("a value contains itself; such a pickle holds no checkpoint data that can be shown or kept")]
    Cycle,
    /// More of something than the limits permit.
    #[error("{what} passes the limit of {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// The limit, in units of `what`.
        limit: u64,
    },
}
