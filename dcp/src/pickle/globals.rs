//! Which names a pickle may mention.
//!
//! Nothing is ever imported or called here, so the lists don't keep code from running: they keep surprises from
//! passing unseen. A name is *known* in its [`Context`], or it is refused or kept as an *opaque* name that the
//! caller can report, as the [`Policy`] says. A name whose only use in a pickle is to run code is refused always,
//! even by a policy that keeps the rest: such a file is an attack on whoever opens it with Python.

use std::fmt;

use super::error::PickleErrorKind;
use super::names::{
    METADATA, NUMPY, Names, PLAIN, RUNNING_MODULES, RUNNING_NAMES, RUNNING_PACKAGES, SHARDS, STORAGE_KINDS,
    TENSORS, TORCH_CONSTANTS,
};

/// What a pickle is part of, which decides the names it may mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The `.metadata` of a torch DCP checkpoint.
    Metadata,
    /// The `data.pkl` of an archive that torch's `save` wrote: a state dict.
    TensorArchive,
    /// The `data.pkl` of a DCP bytes entry: any Python value.
    BytesEntry,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "the metadata of a torch DCP checkpoint",
            Self::TensorArchive => "a torch tensor archive",
            Self::BytesEntry => "a bytes entry of a torch DCP checkpoint",
        })
    }
}

/// What to do with a name that is not on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Refuse the pickle, naming it.
    Refuse,
    /// Keep it as an opaque name, and everything made from it as inert data.
    Inert,
}

/// How the policy judged a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is on the list.
    Known,
    /// It is not, and is kept as an inert name.
    Opaque,
}

/// Judges the names in a pickle.
#[derive(Clone, Debug)]
pub struct Policy {
    context: Context,
    unknown: Unknown,
}

impl Policy {
    /// The list for `context`; refuses what is not on it.
    #[must_use]
    pub fn new(context: Context) -> Self {
        Self { context, unknown: Unknown::Refuse }
    }

    /// Says what to do with names that are not on the list.
    #[must_use]
    pub fn unknown(self, unknown: Unknown) -> Self {
        Self { unknown, ..self }
    }

    pub(super) fn judge(&self, module: &str, name: &str) -> Result<Standing, PickleErrorKind> {
        if runs_code(module, name) {
            return Err(PickleErrorKind::RunsCode { module: module.to_owned(), name: name.to_owned() });
        }
        if self.knows(module, name) {
            return Ok(Standing::Known);
        }
        match self.unknown {
            Unknown::Inert => Ok(Standing::Opaque),
            Unknown::Refuse => Err(PickleErrorKind::NotAllowed {
                module: module.to_owned(),
                name: name.to_owned(),
                context: self.context,
            }),
        }
    }

    fn knows(&self, module: &str, name: &str) -> bool {
        let lists: &[&[Names]] = match self.context {
            Context::Metadata => &[METADATA, PLAIN],
            Context::TensorArchive | Context::BytesEntry => &[TENSORS, SHARDS, NUMPY, PLAIN],
        };
        let listed = |list: &&[Names]| list.iter().any(|(m, names)| *m == module && names.contains(&name));
        lists.iter().any(listed) || is_torch_constant(module, name)
    }
}

/// `torch.float32` and its like, `torch.FloatStorage` and its like.
fn is_torch_constant(module: &str, name: &str) -> bool {
    match module {
        "torch" => TORCH_CONSTANTS.contains(&name) || is_typed_storage(name),
        // Storages that lived on a device when they were saved.
        "torch.cuda" => is_typed_storage(name),
        _ => false,
    }
}

fn is_typed_storage(name: &str) -> bool {
    name.strip_suffix("Storage").is_some_and(|kind| STORAGE_KINDS.contains(&kind))
}

/// Whether the only use of this name in a pickle is to run code.
fn runs_code(module: &str, name: &str) -> bool {
    let package = module.split('.').next().unwrap_or(module);
    RUNNING_PACKAGES.contains(&package)
        || RUNNING_NAMES.iter().any(|(m, names)| *m == module && names.iter().any(|n| is_or_within(name, n)))
        || RUNNING_MODULES.iter().any(|m| is_or_within(module, m))
        || walks_to_code(name)
}

/// A dotted name walks attributes, and so reaches what its module only happens to import.
fn walks_to_code(name: &str) -> bool {
    let private = |part: &str| part.starts_with("__") && part.ends_with("__");
    name.contains('.') && name.split('.').any(|part| private(part) || RUNNING_PACKAGES.contains(&part))
}

fn is_or_within(name: &str, outer: &str) -> bool {
    name.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_runs_code_is_refused_by_every_policy() {
        let names = [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "system"),
            ("builtins", "eval"),
            ("__builtin__", "exec"),
            ("builtins", "getattr"),
            ("builtins", "__import__"),
            ("subprocess", "Popen"),
            ("runpy", "_run_code"),
            ("importlib", "import_module"),
            ("pathlib", "Path.__class__"),
            ("collections", "abc.sys.modules"),
            ("torch.hub", "load"),
            ("numpy.testing._private.utils", "runstring"),
            ("operator", "attrgetter"),
        ];
        for context in [Context::Metadata, Context::TensorArchive, Context::BytesEntry] {
            for (module, name) in names {
                let error = Policy::new(context).unknown(Unknown::Inert).judge(module, name).unwrap_err();
                assert!(matches!(error, PickleErrorKind::RunsCode { .. }), "{module}.{name}: {error}");
            }
        }
    }

    #[test]
    fn no_list_holds_a_name_that_runs_code() {
        for (module, names) in [METADATA, TENSORS, SHARDS, NUMPY, PLAIN].into_iter().flatten() {
            for name in *names {
                assert!(!runs_code(module, name), "{module}.{name}");
            }
        }
    }

    #[test]
    fn the_metadata_of_a_checkpoint_may_not_name_a_tensor_rebuilder() {
        let judge = |context, module, name| Policy::new(context).judge(module, name);
        assert_eq!(judge(Context::TensorArchive, "torch._utils", "_rebuild_tensor_v2"), Ok(Standing::Known));
        let error = judge(Context::Metadata, "torch._utils", "_rebuild_tensor_v2").unwrap_err();
        assert!(error.to_string().contains("`torch._utils._rebuild_tensor_v2`"), "{error}");
        assert_eq!(judge(Context::Metadata, "torch", "float8_e4m3fn"), Ok(Standing::Known));
        assert!(judge(Context::Metadata, "torch", "load").is_err());
        assert!(judge(Context::TensorArchive, "my.project", "Config").is_err());
        let kept = Policy::new(Context::TensorArchive).unknown(Unknown::Inert).judge("my.project", "Config");
        assert_eq!(kept, Ok(Standing::Opaque));
    }
}
