//! Saves: validate, find the boundary, take the request to the leader.

use tidemark_proto::{ApiError, v1};
use tidemark_state_machine::{AppendOutcome, AppendRejection, command::AppendRequest};
use tokio::time::Instant;

use super::{Api, outcome, validate};
use crate::leader::{Answer, Work};

impl Api {
    /// Saves events, all or none.
    ///
    /// # Errors
    ///
    /// [`ApiError`]; only `OutcomeUnknown` means that something may have been written.
    pub async fn save_events(
        &self,
        request: v1::SaveEventsRequest,
        deadline: Instant,
    ) -> Result<v1::WriteResult, ApiError> {
        let valid = validate::save(request, &self.limits, || self.new_event_id())?;
        self.serving(deadline).await?;
        let name = valid.boundary;
        let mut request = AppendRequest::from_record(valid.request).map_err(|error| {
            ApiError::InvalidRequest { field: "events".to_owned(), why: error.to_string() }
        })?;
        loop {
            let (incarnation, known) = self.incarnation(&name, deadline).await?;
            request.incarnation = incarnation;
            let answer = self.router.submit(Work::Append(request.clone()), deadline).await;
            let outcome = match answer.map_err(|error| outcome::with_boundary(error, &name))? {
                Answer::Append(outcome) => outcome,
                Answer::Refused(error) => return Err(outcome::with_boundary(error, &name)),
                Answer::CreateBoundary(_) | Answer::Digest(_) => {
                    return Err(ApiError::Internal { what: "match an answer to a save".to_owned() });
                }
            };
            let rejected = matches!(
                outcome,
                AppendOutcome::Rejected(
                    AppendRejection::BoundaryRecreated { .. } | AppendRejection::BoundaryUnknown
                )
            );
            if rejected && known.may_be_outdated() {
                self.registry.forget(&name);
                continue;
            }
            return outcome::write_result(outcome, &name);
        }
    }

    fn new_event_id(&self) -> String {
        let random = self.environment.random_id();
        uuid::Builder::from_random_bytes(random).into_uuid().to_string()
    }
}
