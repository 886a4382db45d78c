//! `tidemark cluster`: who the members are and how they fare.

mod verdict;

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tidemark_proto::v1::{CompareReplicasResponse, GetClusterInfoResponse, MemberInfo, Role};

pub use verdict::{Health, LAG_ENTRIES, Verdict, verdict};

use super::{
    api::Api,
    exit::CliError,
    output::{Form, Output, Table, Tone, bytes, duration_ms, grouped},
};

/// The cluster's members.
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// One table of all members, and in words who is behind and why.
    Status,
    /// Compares the digests of all replicas at one entry of the log.
    Verify(VerifyArgs),
}

/// How replicas are compared.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// How long all members may take to compute their digests.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    patience: u32,
}

/// Runs it.
pub async fn run(api: &dyn Api, command: ClusterCommand, output: Output) -> Result<(), CliError> {
    match command {
        ClusterCommand::Status => status(&api.cluster_info().await?, output),
        ClusterCommand::Verify(args) => {
            let compared = api.compare_replicas(Duration::from_secs(u64::from(args.patience))).await?;
            verify(&compared, output)
        }
    }
}

fn status(info: &GetClusterInfoResponse, output: Output) -> Result<(), CliError> {
    let verdict = verdict(info);
    match output.form() {
        Form::Json => output.json(&status_json(info, &verdict))?,
        Form::Human => {
            status_table(info).print(&output)?;
            let tone = match verdict.health {
                Health::Good => Tone::Good,
                Health::Degraded => Tone::Warning,
                Health::Down => Tone::Bad,
            };
            output.line(output.paint(tone, &verdict.text))?;
        }
    }
    match verdict.health {
        Health::Good | Health::Degraded => Ok(()),
        Health::Down => Err(CliError::CheckFailed("the cluster cannot take writes")),
    }
}

fn status_table(info: &GetClusterInfoResponse) -> Table {
    let headings = [
        "id",
        "role",
        "address",
        "reachable",
        "term",
        "last",
        "committed",
        "applied",
        "durable",
        "lag",
        "log",
        "db",
        "version",
        "engine",
        "fsync p50",
        "uptime",
    ];
    let mut table = Table::new(headings).numeric([0, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15]);
    for member in &info.members {
        table.row([
            member.node_id.to_string(),
            role_name(member).to_owned(),
            if member.client_address.is_empty() { &member.peer_address } else { &member.client_address }
                .clone(),
            if member.reachable { "yes" } else { "no" }.to_owned(),
            member.term.to_string(),
            grouped(member.last_log_index),
            grouped(member.committed_index),
            grouped(member.applied_index),
            grouped(member.durable_applied_index),
            grouped(member.lag_entries),
            bytes(member.log_bytes),
            bytes(member.database_bytes),
            member.version.clone(),
            member.engine.clone(),
            format!("{:.1} ms", member.fsync_p50_us as f64 / 1000.0),
            duration_ms(member.uptime_ms),
        ]);
    }
    table
}

fn role_name(member: &MemberInfo) -> &'static str {
    match member.role() {
        _ if !member.reachable => "?",
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Unspecified => "?",
    }
}

fn status_json(info: &GetClusterInfoResponse, verdict: &Verdict) -> serde_json::Value {
    let members = info.members.iter().map(|member| {
        json!({
            "node_id": member.node_id, "role": role_name(member), "voter": member.voter,
            "client_address": member.client_address, "peer_address": member.peer_address,
            "reachable": member.reachable, "problem": member.problem, "term": member.term,
            "last_log_index": member.last_log_index, "committed_index": member.committed_index,
            "applied_index": member.applied_index, "durable_applied_index": member.durable_applied_index,
            "first_log_index": member.first_log_index, "lag_entries": member.lag_entries,
            "log_bytes": member.log_bytes, "database_bytes": member.database_bytes,
            "last_event_id": member.last_event_id, "clock_ms": member.clock_ms, "version": member.version,
            "engine": member.engine, "fsync_p50_us": member.fsync_p50_us, "fsync_p99_us": member.fsync_p99_us,
            "uptime_ms": member.uptime_ms,
        })
    });
    json!({
        "cluster_id": hex(&info.cluster_id), "answered_by": info.node_id, "leader_id": info.leader_id,
        "term": info.term, "health": verdict.health.name(), "verdict": verdict.text,
        "members": members.collect::<Vec<_>>(),
    })
}

fn verify(compared: &CompareReplicasResponse, output: Output) -> Result<(), CliError> {
    match output.form() {
        Form::Json => {
            let replicas = compared.replicas.iter().map(|replica| {
                json!({
                    "node_id": replica.node_id, "digest": hex(&replica.digest),
                    "applied_index": replica.applied_index, "row_count": replica.row_count,
                    "problem": replica.problem,
                })
            });
            output.json(&json!({ "equal": compared.equal, "replicas": replicas.collect::<Vec<_>>() }))?;
        }
        Form::Human => {
            let mut table = Table::new(["id", "applied", "rows", "digest", "problem"]).numeric([0, 1, 2]);
            for replica in &compared.replicas {
                table.row([
                    replica.node_id.to_string(),
                    grouped(replica.applied_index),
                    grouped(replica.row_count),
                    hex(&replica.digest).chars().take(16).collect(),
                    replica.problem.clone(),
                ]);
            }
            table.print(&output)?;
            if compared.equal {
                output.line(output.paint(Tone::Good, "all replicas are equal"))?;
            }
        }
    }
    if compared.equal { Ok(()) } else { Err(CliError::CheckFailed(difference(compared))) }
}

/// A member that did not answer and a replica that differs call for different measures.
fn difference(compared: &CompareReplicasResponse) -> &'static str {
    let mut digests =
        compared.replicas.iter().filter(|replica| !replica.digest.is_empty()).map(|r| &r.digest);
    let first = digests.next();
    if digests.all(|digest| Some(digest) == first) {
        "not every replica could be compared; those that answered are equal"
    } else {
        "replicas differ"
    }
}

/// Hexadecimal digits.
pub fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use tidemark_proto::v1::ReplicaDigest;

    use super::*;

    #[test]
    fn a_silent_member_is_told_from_a_different_replica() {
        let replica =
            |digest: &'static [u8]| ReplicaDigest { digest: digest.into(), ..ReplicaDigest::default() };
        let silent = CompareReplicasResponse {
            equal: false,
            replicas: vec![replica(b"a"), replica(b""), replica(b"a")],
        };
        assert!(difference(&silent).starts_with("not every replica"));
        let different =
            CompareReplicasResponse { equal: false, replicas: vec![replica(b"a"), replica(b"b")] };
        assert_eq!(difference(&different), "replicas differ");
    }

    #[test]
    fn the_table_has_one_row_per_member() {
        let info = GetClusterInfoResponse {
            members: vec![MemberInfo { node_id: 1, ..MemberInfo::default() }; 3],
            ..GetClusterInfoResponse::default()
        };
        assert_eq!(status_table(&info).lines().len(), 4);
    }
}
