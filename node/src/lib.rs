//! Tidemark node.

pub mod config;
