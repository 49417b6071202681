//! Who depends on whom, by package name, as `cargo metadata` says; development dependencies are left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// The resolved dependency graph.
#[derive(Debug)]
pub(super) struct Graph {
    members: BTreeSet<String>,
    defaults: BTreeSet<String>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    workspace_default_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

impl Graph {
    /// From the JSON of `cargo metadata --format-version=1`.
    pub(super) fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        let metadata: Metadata = serde_json::from_slice(json)?;
        let names: BTreeMap<&str, &str> =
            metadata.packages.iter().map(|package| (package.id.as_str(), package.name.as_str())).collect();
        let name = |id: &str| names.get(id).map_or_else(|| id.to_owned(), |name| (*name).to_owned());
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in &metadata.resolve.nodes {
            let built = node.deps.iter().filter(|dependency| dependency.is_built_in());
            edges.entry(name(&node.id)).or_default().extend(built.map(|dependency| name(&dependency.pkg)));
        }
        let named = |ids: &[String]| ids.iter().map(|id| name(id)).collect();
        let (members, defaults) =
            (named(&metadata.workspace_members), named(&metadata.workspace_default_members));
        Ok(Self { members, defaults, edges })
    }

    #[cfg(test)]
    pub(super) fn new(members: &[&str], edges: &[(&str, &[&str])]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        Self {
            members: owned(members),
            defaults: BTreeSet::new(),
            edges: edges.iter().map(|(from, to)| ((*from).to_owned(), owned(to))).collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn with_defaults(self, names: &[&str]) -> Self {
        Self { defaults: names.iter().map(|name| (*name).to_owned()).collect(), ..self }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(String::as_str)
    }

    pub(super) fn is_member(&self, name: &str) -> bool {
        self.members.contains(name)
    }

    /// Whether a bare `cargo build` builds it.
    pub(super) fn is_default(&self, name: &str) -> bool {
        self.defaults.contains(name)
    }

    /// Everything that `start` depends on, directly or not.
    pub(super) fn reached_from(&self, start: &str) -> BTreeSet<&str> {
        self.reached_past(start, &[])
    }

    /// The same, without what is reached only by way of `leaves`.
    pub(super) fn reached_past(&self, start: &str, leaves: &[&str]) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(name) = open.pop() {
            if leaves.contains(&name) {
                continue;
            }
            for next in self.edges.get(name).into_iter().flatten() {
                if reached.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        reached
    }
}

impl Dependency {
    fn is_built_in(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"))
    }
}
