//! Several launchers, one for each machine, that form one run: on this machine, told apart by their numbers.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod failures;
mod launchers;
mod meeting;
mod training;
