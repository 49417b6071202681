//! An optimizer's `param_groups`: which parameter each index of its state is of.

use fqn::state_dict::ParamGroup;

use crate::pickle::Ref;

/// The `param_groups` of the one optimizer in the state dict; nothing where there are several, whose indices would
/// be mixed up.
pub(super) fn groups(root: Ref<'_>) -> Vec<ParamGroup> {
    let mut found = Vec::new();
    let entries = root.as_mapping().into_iter().flatten().map(|(_, value)| value);
    for value in std::iter::once(root).chain(entries) {
        let inner = value.as_sequence().into_iter().flatten();
        for optimizer in std::iter::once(value).chain(inner) {
            found.extend(optimizer.get("param_groups").and_then(Ref::as_sequence));
        }
    }
    match found.as_slice() {
        [one] => one.clone().map(group).collect::<Option<_>>().unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn group(value: Ref<'_>) -> Option<ParamGroup> {
    let params = value.get("params")?.as_sequence()?.map(Ref::as_u64).collect::<Option<_>>()?;
    let names = value.get("param_names").and_then(Ref::as_sequence).into_iter().flatten();
    let names = names.map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    Some(ParamGroup { params, names })
}
