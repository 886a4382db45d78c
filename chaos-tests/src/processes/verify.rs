//! Whether everything that was acknowledged is there, once, on every node.

use std::time::Duration;

use futures::TryStreamExt;
use tidemark_client::{Client, Error, v1};

use super::probe;
use crate::{
    history::{self, Append, FinalState, History},
    invariants,
};

/// Events of one page.
const PAGE_EVENTS: u32 = 5_000;

/// How long the replicas get to digest their state.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads everything back from each node and judges it. Nothing may be under way meanwhile.
///
/// # Errors
///
/// When a node does not answer.
pub(super) async fn verify(
    client: &Client,
    nodes: &[(u64, String)],
    boundary: &str,
    appends: Vec<Append>,
) -> Result<Vec<String>, Error> {
    let compared = client.compare_replicas(COMPARE_TIMEOUT).await?;
    let mut problems = Vec::new();
    let mut finals = Vec::new();
    for (node, address) in nodes {
        let replica = compared.replicas.iter().find(|replica| replica.node_id == *node);
        let problem = replica.map_or("it was not compared", |replica| &replica.problem);
        if !problem.is_empty() {
            problems.push(format!("replicas_equal: node {node}: {problem}"));
        }
        let digest = replica.map(|replica| replica.digest.to_vec()).unwrap_or_default();
        finals.push(FinalState { node: *node, events: read_all(address, boundary).await?, digest });
    }
    if !compared.equal {
        problems.push("replicas_equal: the digests are not equal".to_owned());
    }
    let history = History { appends, finals, ..History::default() };
    problems.extend(invariants::violations(&history).iter().map(ToString::to_string));
    Ok(problems)
}

async fn read_all(address: &str, boundary: &str) -> Result<Vec<history::SeenEvent>, Error> {
    let request = v1::GetEventsRequest {
        boundary: boundary.to_owned(),
        count: PAGE_EVENTS,
        ..v1::GetEventsRequest::default()
    };
    let events: Vec<v1::Event> = probe::client_of(address)?.read_all(request).try_collect().await?;
    Ok(history::seen(events))
}
