//! Tidemark node.
