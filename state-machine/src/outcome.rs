//! What applying a command answers.

/// The answer to one command, alike on every replica.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The clock was moved.
    Ticked,
}
