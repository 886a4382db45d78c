//! Tidemark proto.
