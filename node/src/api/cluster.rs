//! The cluster as this node sees it, and the comparison of its replicas.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tidemark_proto::{ApiError, peer, v1};
use tidemark_raft::{MemberStatus, Role, network::PeerError};
use tokio::time::Instant;

use super::Api;
use crate::leader::{Answer, Work};

/// A member that does not describe itself within this time is shown as unreachable.
const DESCRIBE_TIMEOUT: Duration = Duration::from_millis(800);

/// How long replicas may take to digest their state when the caller does not say.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(30);

impl Api {
    /// What this node says about itself, to members and clients.
    pub async fn describe(&self) -> peer::DescribeResponse {
        let status = self.raft.status();
        let progress = *self.raft.progress().borrow();
        let log = self.raft.log().stats();
        let (raft, db) = (self.raft.clone(), self.raft.database());
        let on_disk = self.environment.blocking(move || (raft.durable_applied_index(), db.disk_bytes()));
        let (durable, database_bytes) = on_disk.await;
        peer::DescribeResponse {
            node_id: self.raft.identity().node_id,
            client_address: self.client_address.clone(),
            version: crate::VERSION.to_owned(),
            engine: self.raft.database().engine().to_owned(),
            role: status.role.name().to_owned(),
            term: status.term,
            last_log_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: progress.index(),
            durable_applied_index: durable.unwrap_or(0),
            first_log_index: log.first_index.unwrap_or(0),
            log_bytes: log.bytes_on_disk,
            database_bytes: database_bytes.unwrap_or(0),
            last_event_id: progress.last_event_id,
            clock_ms: progress.clock_ms,
            uptime_ms: self.uptime_ms(),
            fsync_p50_us: micros(log.sync_p50),
            fsync_p99_us: micros(log.sync_p99),
        }
    }

    /// Every member, asked now.
    pub async fn cluster_info(&self) -> v1::GetClusterInfoResponse {
        let status = self.raft.status();
        let identity = self.raft.identity();
        let mut asked: FuturesUnordered<_> =
            status.members.iter().map(|member| async move { (member, self.ask(member).await) }).collect();
        let mut members = Vec::new();
        while let Some((member, described)) = asked.next().await {
            members.push(self.member_info(member, described));
        }
        members.sort_by_key(|member| member.node_id);
        let last = members.iter().map(|member| member.last_log_index).max().unwrap_or(0);
        for member in members.iter_mut().filter(|member| member.reachable) {
            member.lag_entries = last.saturating_sub(member.applied_index);
        }
        v1::GetClusterInfoResponse {
            cluster_id: identity.cluster_id.to_vec().into(),
            group_id: self.raft.group_id(),
            node_id: identity.node_id,
            leader_id: status.leader.unwrap_or(0),
            term: status.term,
            members,
        }
    }

    async fn ask(&self, member: &MemberStatus) -> Result<peer::DescribeResponse, PeerError> {
        if member.node_id == self.raft.identity().node_id {
            return Ok(self.describe().await);
        }
        let peer = self.raft.peer(member);
        let asked = tokio::time::timeout(DESCRIBE_TIMEOUT, peer.describe(peer::DescribeRequest {})).await;
        asked.unwrap_or(Err(PeerError::TimedOut))
    }

    fn member_info(
        &self,
        member: &MemberStatus,
        described: Result<peer::DescribeResponse, PeerError>,
    ) -> v1::MemberInfo {
        let known = v1::MemberInfo {
            node_id: member.node_id,
            peer_address: member.peer_address.clone(),
            voter: member.voter,
            ..v1::MemberInfo::default()
        };
        match described {
            Err(error) => v1::MemberInfo {
                client_address: self.raft.contacts().client_address(member.node_id).unwrap_or_default(),
                problem: error.to_string(),
                ..known
            },
            Ok(described) => v1::MemberInfo {
                client_address: described.client_address,
                reachable: true,
                role: role(&described.role).into(),
                version: described.version,
                engine: described.engine,
                term: described.term,
                last_log_index: described.last_log_index,
                committed_index: described.committed_index,
                applied_index: described.applied_index,
                durable_applied_index: described.durable_applied_index,
                first_log_index: described.first_log_index,
                log_bytes: described.log_bytes,
                database_bytes: described.database_bytes,
                last_event_id: described.last_event_id,
                clock_ms: described.clock_ms,
                uptime_ms: described.uptime_ms,
                fsync_p50_us: described.fsync_p50_us,
                fsync_p99_us: described.fsync_p99_us,
                ..known
            },
        }
    }

    /// Makes every replica digest its state at one entry and compares the digests.
    ///
    /// # Errors
    ///
    /// [`ApiError`] when the command could not be committed. A replica that does not answer is part of the result.
    pub async fn compare_replicas(
        &self,
        request: v1::CompareReplicasRequest,
    ) -> Result<v1::CompareReplicasResponse, ApiError> {
        let timeout = match request.timeout_ms {
            0 => COMPARE_TIMEOUT,
            timeout_ms => Duration::from_millis(timeout_ms.into()),
        };
        let deadline = Instant::now() + timeout;
        self.serving(deadline).await?;
        let digest_id = self.environment.random.next_u64();
        match self.router.submit(Work::Digest(digest_id), deadline).await? {
            Answer::Digest(_) => {}
            Answer::Refused(error) => return Err(error),
            Answer::Append(_) | Answer::CreateBoundary(_) => {
                return Err(ApiError::Internal { what: "match an answer to a digest".to_owned() });
            }
        }
        let members = self.raft.status().members;
        let mut asked: FuturesUnordered<_> =
            members.iter().map(|member| self.digest_of(member, digest_id, deadline)).collect();
        let mut replicas = Vec::new();
        while let Some(replica) = asked.next().await {
            replicas.push(replica);
        }
        replicas.sort_by_key(|replica: &v1::ReplicaDigest| replica.node_id);
        let equal = replicas.iter().all(|replica| {
            replica.problem.is_empty() && !replica.digest.is_empty() && replica.digest == replicas[0].digest
        });
        Ok(v1::CompareReplicasResponse { equal, replicas })
    }

    async fn digest_of(&self, member: &MemberStatus, digest_id: u64, deadline: Instant) -> v1::ReplicaDigest {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout_ms = u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX);
        let request = peer::GetDigestRequest { digest_id, timeout_ms };
        let node_id = member.node_id;
        let answer = if node_id == self.raft.identity().node_id {
            let digests = Arc::clone(self.raft.digests());
            digests.wait(digest_id, remaining).await.ok_or(PeerError::TimedOut)
        } else {
            let peer = self.raft.peer(member);
            let asked = tokio::time::timeout_at(deadline, peer.get_digest(request)).await;
            asked.unwrap_or(Err(PeerError::TimedOut))
        };
        match answer {
            Ok(digest) => v1::ReplicaDigest {
                node_id,
                digest: digest.digest,
                applied_index: digest.applied.map_or(0, |log_id| log_id.index),
                row_count: digest.row_count,
                problem: String::new(),
            },
            Err(error) => {
                v1::ReplicaDigest { node_id, problem: error.to_string(), ..v1::ReplicaDigest::default() }
            }
        }
    }
}

fn role(name: &str) -> v1::Role {
    let roles = [
        (Role::Leader, v1::Role::Leader),
        (Role::Follower, v1::Role::Follower),
        (Role::Candidate, v1::Role::Candidate),
        (Role::Learner, v1::Role::Learner),
    ];
    roles.iter().find(|(role, _)| role.name() == name).map_or(v1::Role::Unspecified, |(_, role)| *role)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
