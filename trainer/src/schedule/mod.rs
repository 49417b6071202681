//! Schedules as data: a table of actions per rank, generated, validated, lowered to communication, and run by one
//! interpreter.

mod action;

pub use action::{Action, Step};
