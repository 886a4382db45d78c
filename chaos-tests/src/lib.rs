//! Tidemark chaos-tests.
