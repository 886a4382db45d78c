//! The segment log.
