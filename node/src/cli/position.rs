//! Positions on the command line: `commit/prepare`.

use std::str::FromStr;

use tidemark_proto::v1::Position;

/// A position as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionText {
    commit: i64,
    prepare: i64,
}

/// The text is no position.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a position of the form commit/prepare, for example 1357000000000/42")]
pub struct PositionError(String);

impl FromStr for PositionText {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = || {
            let (commit, prepare) = text.split_once('/')?;
            Some(Self { commit: commit.parse().ok()?, prepare: prepare.parse().ok()? })
        };
        numbers().ok_or_else(|| PositionError(text.to_owned()))
    }
}

impl From<PositionText> for Position {
    fn from(text: PositionText) -> Self {
        Self { commit_position: text.commit, prepare_position: text.prepare }
    }
}

/// `commit/prepare`.
pub fn shown(position: Option<&Position>) -> String {
    position.map_or_else(String::new, |at| format!("{}/{}", at.commit_position, at.prepare_position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_two_numbers() {
        let position = Position::from("12/-3".parse::<PositionText>().unwrap());
        assert_eq!((position.commit_position, position.prepare_position), (12, -3));
        assert_eq!(shown(Some(&position)), "12/-3");
        for wrong in ["", "1", "1/", "/1", "a/b", "1/2/3"] {
            assert!(wrong.parse::<PositionText>().is_err(), "{wrong:?}");
        }
    }
}
