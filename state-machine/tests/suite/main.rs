//! The state machine from outside: golden scripts, properties against a naive reference, and crashes.

mod codec;
mod crafted;
mod fixture;
mod golden;
mod history;
mod properties;
mod reference;
