//! Real processes on loopback, under load, that are killed and started again.

pub mod kill_loop;
mod load;
mod probe;
mod report;
mod verify;
