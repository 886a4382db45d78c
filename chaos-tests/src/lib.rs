//! Tests that break things: a deterministic simulation of a whole cluster, and real processes that are killed.
//!
//! Both write a [`history::History`] of what clients did and saw, and [`invariants`] judge it. A run that finds a
//! violation prints a `REPRODUCE:` line.

pub mod cli;
pub mod history;
pub mod invariants;
pub mod processes;
pub mod simulation;
