//! Checks that a payload is one JSON object the store can keep and query, without building its values.
//!
//! The rules beyond RFC 8259: the root is an object, nesting is bounded, surrogates come in pairs, and the exponent
//! of a number fits an `i64`. Numbers are never turned into machine numbers here, so their digits and exponents may
//! be as large as the payload (`1e1000000000` is twelve bytes). Duplicate keys are allowed, as RFC 8259 allows them.
//!
//! **Invariant**: nothing recurses, so no payload can exhaust the stack. Only a string that contains escapes is
//! copied, into a buffer that is used again.

use std::collections::HashSet;

use jiter::{Jiter, JiterError, JiterErrorType, JsonErrorType, Peek};

/// Root keys that start so belong to the store, which answers queries for them itself.
pub const RESERVED_PREFIX: &str = "__";

/// Which keys the root of an object may have.
#[derive(Clone, Copy, Debug)]
pub enum RootKeys<'a> {
    /// Any: nothing queries this object.
    Any,
    /// None that is reserved, and none that is among the names of the event's attributes.
    Queried {
        /// The names of the attributes.
        attributes: &'a HashSet<&'a str>,
    },
}

/// Why a payload is refused. Offsets count bytes from the start of the payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The root is missing, no JSON, or another kind of value.
    #[error("must be a JSON object")]
    NotAnObject,
    /// It is not JSON in UTF-8, or has something behind the object.
    #[error("is not valid JSON: {reason} at byte {offset}")]
    Syntax {
        /// What the parser found.
        reason: JiterErrorType,
        /// Where.
        offset: usize,
    },
    /// A string has one half of a surrogate pair, which is no character and has no form in UTF-8.
    #[error("has a lone surrogate at byte {offset}")]
    LoneSurrogate {
        /// Where its escape ends.
        offset: usize,
    },
    /// Objects and arrays stand in each other too deeply.
    #[error("is nested more deeply than max_json_depth ({depth_max}) at byte {offset}")]
    TooDeep {
        /// The levels allowed.
        depth_max: usize,
        /// Where the first level too many begins.
        offset: usize,
    },
    /// The exponent of a number is outside the range of a signed 64-bit integer.
    #[error("has a number whose exponent does not fit 64 bits at byte {offset}")]
    ExponentOutOfRange {
        /// Where the number begins.
        offset: usize,
    },
    /// A root key is reserved.
    #[error("has the root key {key:?}, but root keys that start with {RESERVED_PREFIX:?} are reserved")]
    ReservedKey {
        /// The key, without escapes.
        key: String,
    },
    /// A root key is also the name of an attribute.
    #[error("has the root key {key:?}, which is also the name of an attribute")]
    KeyOfAttribute {
        /// The key, without escapes.
        key: String,
    },
}

/// Checks payloads one after another and keeps its buffers in between.
#[derive(Debug)]
pub struct Checker {
    depth_max: usize,
    levels: Vec<Level>,
    unescaped: Vec<u8>,
}

/// An object or array that has begun and not ended.
#[derive(Clone, Copy, Debug)]
enum Level {
    Array,
    Object,
}

impl Checker {
    /// A checker that allows `depth_max` levels; the root object is level 1.
    pub fn new(depth_max: usize) -> Self {
        Self { depth_max, levels: Vec::new(), unescaped: Vec::new() }
    }

    /// Checks that `payload` is one JSON object, with white space around it at most, whose root keys are as
    /// `root_keys` says.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn object(&mut self, payload: &[u8], root_keys: RootKeys<'_>) -> Result<(), JsonError> {
        self.levels.clear();
        let mut walk = Walk {
            payload,
            rest_at: 0,
            parser: Jiter::with_tape(payload, std::mem::take(&mut self.unescaped)),
            levels: &mut self.levels,
            depth_max: self.depth_max,
            root_keys,
        };
        let result = walk.run();
        self.unescaped = walk.parser.into_tape();
        result
    }
}

struct Walk<'a> {
    payload: &'a [u8],
    /// Where in the payload the parser's input begins: not at 0 behind a number that it could not take.
    rest_at: usize,
    parser: Jiter<'a>,
    levels: &'a mut Vec<Level>,
    depth_max: usize,
    root_keys: RootKeys<'a>,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), JsonError> {
        let mut value = match self.parser.peek() {
            Ok(root) if root == Peek::Object => root,
            Ok(_) | Err(_) => return Err(JsonError::NotAnObject),
        };
        loop {
            let inner = match value {
                Peek::Object => self.begin_object()?,
                Peek::Array => self.begin_array()?,
                scalar => {
                    self.scalar(scalar)?;
                    None
                }
            };
            value = match inner {
                Some(inner) => inner,
                None => match self.value_after()? {
                    Some(next) => next,
                    None => return self.parser.finish().map_err(|error| syntax(self.rest_at, error)),
                },
            };
        }
    }

    /// Enters an object; gives its first value, or nothing if it is empty and so has ended.
    fn begin_object(&mut self) -> Result<Option<Peek>, JsonError> {
        self.enter(Level::Object)?;
        let key = self.parser.known_object().map_err(|error| syntax(self.rest_at, error))?;
        if self.levels.len() == 1
            && let Some(key) = key
        {
            check_root_key(self.root_keys, key)?;
        }
        match key {
            Some(_) => self.peek().map(Some),
            None => {
                self.levels.pop();
                Ok(None)
            }
        }
    }

    /// Enters an array; gives its first value, or nothing if it is empty and so has ended.
    fn begin_array(&mut self) -> Result<Option<Peek>, JsonError> {
        self.enter(Level::Array)?;
        let first = self.parser.known_array().map_err(|error| syntax(self.rest_at, error))?;
        if first.is_none() {
            self.levels.pop();
        }
        Ok(first)
    }

    /// The value that follows one that has ended, on its level or, where that ends too, further out; nothing once
    /// the root has ended.
    fn value_after(&mut self) -> Result<Option<Peek>, JsonError> {
        while let Some(level) = self.levels.last() {
            match level {
                Level::Array => {
                    let next = self.parser.array_step().map_err(|error| syntax(self.rest_at, error))?;
                    if next.is_some() {
                        return Ok(next);
                    }
                }
                Level::Object => {
                    let key = self.parser.next_key().map_err(|error| syntax(self.rest_at, error))?;
                    if let Some(key) = key {
                        if self.levels.len() == 1 {
                            check_root_key(self.root_keys, key)?;
                        }
                        return self.peek().map(Some);
                    }
                }
            }
            self.levels.pop();
        }
        Ok(None)
    }

    fn enter(&mut self, level: Level) -> Result<(), JsonError> {
        if self.levels.len() >= self.depth_max {
            let offset = self.rest_at + self.parser.current_index();
            return Err(JsonError::TooDeep { depth_max: self.depth_max, offset });
        }
        self.levels.push(level);
        Ok(())
    }

    fn peek(&mut self) -> Result<Peek, JsonError> {
        self.parser.peek().map_err(|error| syntax(self.rest_at, error))
    }

    fn scalar(&mut self, value: Peek) -> Result<(), JsonError> {
        let result = match value {
            // Decoded and not skipped: only decoding checks UTF-8 and surrogates.
            Peek::String => self.parser.known_str().map(drop),
            Peek::True | Peek::False => self.parser.known_bool(value).map(drop),
            Peek::Null => self.parser.known_null(),
            _ => return self.number(value),
        };
        result.map_err(|error| syntax(self.rest_at, error))
    }

    fn number(&mut self, value: Peek) -> Result<(), JsonError> {
        let start = self.parser.current_index();
        let number = match self.parser.known_number_bytes(value) {
            Ok(number) => number,
            // The parser gives up after some thousands of digits before the point, which JSON does not forbid.
            Err(error) if error.error_type == JiterErrorType::JsonError(JsonErrorType::NumberOutOfRange) => {
                return self.long_number(self.rest_at + start);
            }
            Err(error) => return Err(syntax(self.rest_at, error)),
        };
        check_exponent(number, self.rest_at + start)
    }

    /// Passes the number at `start` and lets a new parser go on behind it. A parser has no other state than its
    /// place: the levels are ours.
    fn long_number(&mut self, start: usize) -> Result<(), JsonError> {
        let number = &self.payload[start..];
        let end = end_of_number(number).map_err(|at| JsonError::Syntax {
            reason: JiterErrorType::JsonError(JsonErrorType::InvalidNumber),
            offset: start + at,
        })?;
        check_exponent(&number[..end], start)?;
        self.rest_at = start + end;
        let replaced = std::mem::replace(&mut self.parser, Jiter::new(&[]));
        self.parser = Jiter::with_tape(&self.payload[self.rest_at..], replaced.into_tape());
        Ok(())
    }
}

fn syntax(rest_at: usize, error: JiterError) -> JsonError {
    let offset = rest_at + error.index;
    match error.error_type {
        // The second is what the parser says when a leading surrogate has no escape behind it.
        JiterErrorType::JsonError(
            JsonErrorType::LoneLeadingSurrogateInHexEscape | JsonErrorType::UnexpectedEndOfHexEscape,
        ) => JsonError::LoneSurrogate { offset },
        reason => JsonError::Syntax { reason, offset },
    }
}

fn check_root_key(root_keys: RootKeys<'_>, key: &str) -> Result<(), JsonError> {
    match root_keys {
        RootKeys::Any => Ok(()),
        RootKeys::Queried { .. } if key.starts_with(RESERVED_PREFIX) => {
            Err(JsonError::ReservedKey { key: key.to_owned() })
        }
        RootKeys::Queried { attributes } if !attributes.is_empty() && attributes.contains(key) => {
            Err(JsonError::KeyOfAttribute { key: key.to_owned() })
        }
        RootKeys::Queried { .. } => Ok(()),
    }
}

/// Where the number at the start of `text` ends, or where it breaks the grammar. Its first digit is not 0.
fn end_of_number(text: &[u8]) -> Result<usize, usize> {
    let digits = |from: usize| {
        let count = text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 { Err(from) } else { Ok(from + count) }
    };
    let mut end = digits(usize::from(text.first() == Some(&b'-')))?;
    if text.get(end) == Some(&b'.') {
        end = digits(end + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(end) {
        let signed = matches!(text.get(end + 1), Some(b'+' | b'-'));
        end = digits(end + 1 + usize::from(signed))?;
    }
    Ok(end)
}

/// Checks the exponent of a number that follows the grammar and begins at byte `offset`.
fn check_exponent(number: &[u8], offset: usize) -> Result<(), JsonError> {
    let Some(at) = number.iter().position(|byte| matches!(byte, b'e' | b'E')) else {
        return Ok(());
    };
    let (negative, digits) = match &number[at + 1..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let mut exponent: i64 = 0;
    for digit in digits {
        let digit = i64::from(digit - b'0');
        // The sign goes in digit by digit, because i64::MIN has no positive counterpart.
        let signed = if negative { -digit } else { digit };
        exponent = exponent
            .checked_mul(10)
            .and_then(|exponent| exponent.checked_add(signed))
            .ok_or(JsonError::ExponentOutOfRange { offset })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
