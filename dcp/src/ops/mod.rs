//! What a user asks for, on any two formats: plan, convert, verify, compare, seal, copy. Everything here works on catalogs
//! and byte ranges alone; `ckpt` and the trainer call it and only present what it returns.

pub mod content;
pub mod copy;
pub mod diff;
pub mod doctor;
pub mod naming;
mod objects;
mod pieces;
pub mod prepare;
pub mod restack;
pub mod seal;
pub mod standing;
pub mod verify;
