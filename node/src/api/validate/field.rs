//! Names the fields of requests in errors, and checks what all short texts have in common.

use std::fmt;

use tidemark_proto::{ApiError, LimitKind};

use crate::api::limits::Limits;

/// The path of a field. It costs nothing until an error shows it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// A field of the request itself.
    Request(&'static str),
    /// A field of one of its events.
    Event(usize, &'static str),
    /// A field of an attribute of an event.
    Attribute(usize, usize, &'static str),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(name) => f.write_str(name),
            Self::Event(event, name) => write!(f, "events[{event}].{name}"),
            Self::Attribute(event, attribute, name) => {
                write!(f, "events[{event}].attributes[{attribute}].{name}")
            }
        }
    }
}

impl Field {
    /// The error that says why this field is refused.
    pub(super) fn invalid(self, why: impl Into<String>) -> ApiError {
        ApiError::invalid(self.to_string(), why)
    }

    /// Checks that `text` is there.
    pub(super) fn required(self, text: &str) -> Result<(), ApiError> {
        if text.is_empty() { Err(self.invalid("must not be empty")) } else { Ok(()) }
    }

    /// Checks a short text that names something: its length and that it has no NUL, which no query can name.
    pub(super) fn label(self, text: &str, limits: &Limits) -> Result<(), ApiError> {
        self.at_most(text.len() as u64, "max_key_bytes", limits.max_key_bytes as u64)?;
        self.without_nul(text)
    }

    /// Checks that `text` has no NUL.
    pub(super) fn without_nul(self, text: &str) -> Result<(), ApiError> {
        if text.contains('\0') { Err(self.invalid("must not contain NUL")) } else { Ok(()) }
    }

    /// Checks the number of bytes of this field against the limit `name`.
    pub(super) fn at_most(self, bytes: u64, name: &str, maximum: u64) -> Result<(), ApiError> {
        if bytes <= maximum {
            return Ok(());
        }
        Err(self.invalid(format!("has {bytes} bytes, and {name} is {maximum}")))
    }
}

/// Checks the boundary's name in a request to an existing boundary. Whether it can be a boundary's name at all is not
/// asked: one that cannot is unknown like any other.
pub(super) fn boundary_name(name: &str, limits: &Limits) -> Result<(), ApiError> {
    let field = Field::Request("boundary");
    field.required(name)?;
    field.label(name, limits)
}

/// Checks a size of a whole request or event against the limit `name`.
pub(super) fn size(name: &str, actual: u64, maximum: u64) -> Result<(), ApiError> {
    if actual <= maximum {
        return Ok(());
    }
    Err(ApiError::LimitExceeded { limit: name.to_owned(), maximum, actual, kind: LimitKind::Size })
}
