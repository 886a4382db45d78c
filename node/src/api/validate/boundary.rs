//! Checks the definition of a boundary that is to be created.

use tidemark_proto::{ApiError, record, v1};
use tidemark_state_machine::boundary::{
    DESCRIPTION_BYTES_MAX, IDEMPOTENCY_RETENTION_MS_MAX, NAME_BYTES_MAX, TIME_BUCKET_MS_MAX, is_valid_name,
};

use super::field::Field;

/// Checks `definition`. `time_ms` and `event_id` of the result are 0: the sequencer stamps them.
///
/// The bounds are those that every replica holds the command to, so none can refuse what passes here.
///
/// # Errors
/// [`ApiError::InvalidRequest`] with the field, [`ApiError::NotSupported`].
pub fn boundary_definition(definition: &v1::BoundaryDefinition) -> Result<record::CreateBoundary, ApiError> {
    let name = Field::Request("definition.name");
    name.required(&definition.name)?;
    if !is_valid_name(&definition.name) {
        let why = format!(
            "must be 1 to {NAME_BYTES_MAX} letters, digits and underscores, and not start with a digit"
        );
        return Err(name.invalid(why));
    }
    if definition.description.len() > DESCRIPTION_BYTES_MAX {
        let why = format!("has {} bytes, the most are {DESCRIPTION_BYTES_MAX}", definition.description.len());
        return Err(Field::Request("definition.description").invalid(why));
    }
    at_most("definition.time_bucket_ms", definition.time_bucket_ms, TIME_BUCKET_MS_MAX)?;
    at_most(
        "definition.idempotency_retention_ms",
        definition.idempotency_retention_ms,
        IDEMPOTENCY_RETENTION_MS_MAX,
    )?;
    let group = definition.placement.as_ref().map_or(0, |placement| placement.group);
    if group != 0 {
        return Err(
            Field::Request("definition.placement.group").invalid(format!("there is no group {group}"))
        );
    }
    if definition.retention.is_some() {
        return Err(ApiError::NotSupported { what: "definition.retention".to_owned() });
    }
    Ok(record::CreateBoundary {
        time_ms: 0,
        event_id: 0,
        name: definition.name.clone(),
        description: definition.description.clone(),
        time_bucket_ms: definition.time_bucket_ms,
        placement_group: group,
        idempotency_retention_ms: definition.idempotency_retention_ms,
    })
}

fn at_most(field: &'static str, value_ms: u64, maximum_ms: u64) -> Result<(), ApiError> {
    if value_ms <= maximum_ms {
        return Ok(());
    }
    Err(Field::Request(field).invalid(format!("{value_ms} is above {maximum_ms}, a year")))
}
