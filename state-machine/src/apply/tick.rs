//! Applies a tick: the clock moves on, so that what was waiting for it happens.

use crate::{command::Tick, outcome::Outcome, state::State};

pub(super) fn apply(state: &mut State<'_>, tick: &Tick) -> Outcome {
    Outcome::Ticked { clock_ms: state.advance_clock(tick.time_ms) }
}
