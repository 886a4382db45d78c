//! What a node tells about itself.

pub mod logging;
