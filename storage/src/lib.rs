//! The ordered key-value contract of Tidemark and its engines.

pub mod contract;
