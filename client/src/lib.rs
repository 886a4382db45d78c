//! Tidemark client.
