//! Tokens are made, and nodes join with them.

use super::service::Service;
use crate::events::now_ms;
use crate::options::check_joined_listen;
use freebs_control::api::{JoinRequest, Joined, Reply, Secret};
use freebs_control::cluster_file::ClusterPeer;
use freebs_control::{Command, ControlPlane, NewNode, Outcome};
use freebs_format::keys::{JOIN_SECRET_BYTES, JoinToken};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{Error, HostPublic, Result};
use std::net::SocketAddr;

impl Service {
    fn authority(&self) -> Result<HostPublic> {
        self.state()?.joining().authority().ok_or_else(|| {
            Error::invalid(
                "this cluster has no authority, so nodes can't join it: its nodes are those of its cluster file. \
                 `freebs cluster init` makes a cluster that nodes can join",
            )
        })
    }

    pub(super) async fn make_token(&self, valid_ms: u64) -> Result<Reply> {
        let authority = self.authority()?;
        let mut secret = [0; JOIN_SECRET_BYTES];
        OsRandom.fill(&mut secret);
        let now_ms = now_ms();
        let expires_ms = now_ms.saturating_add(valid_ms);
        let token = JoinToken { cluster: self.me().cluster, authority, secret, expires_ms };
        self.plane.submit(Command::MakeToken { token: token.hash(), expires_ms, now_ms }).await?;
        Ok(Reply::Token { token: Secret(token.text()), expires_ms })
    }

    pub(super) async fn join(&self, of: JoinRequest) -> Result<Reply> {
        let token = JoinToken::parse(&of.token.0)?;
        let here = self.me().cluster;
        if token.cluster != here {
            return Err(Error::invalid(format!(
                "the token is of the cluster {}, and {} is a node of {here}; ask a node of that cluster",
                token.cluster,
                self.me().name
            )));
        }
        if token.authority != self.authority()? {
            return Err(Error::invalid(
                "the token is of another authority than this cluster has; `freebs cluster token` makes another one",
            ));
        }
        let address: SocketAddr = of.address.parse().map_err(|_| {
            Error::invalid(format!("'{}' is no address of a node; it is HOST:PORT in numbers", of.address))
        })?;
        check_joined_listen(address)?;
        let new = NewNode {
            token: token.hash(),
            identity: of.identity,
            name: of.name,
            address: of.address,
            workers: of.workers,
            now_ms: now_ms(),
        };
        let done = self.plane.submit(Command::AddNode(new)).await?;
        let Outcome::Added { node } = done.outcome else { return Err(Error::bug("a node was added otherwise")) };
        let state = self.state()?;
        let others = state.nodes().filter(|n| n.id != node).map(|n| ClusterPeer {
            id: n.id,
            name: n.name.clone(),
            address: n.address.clone(),
            workers: n.workers,
        });
        Ok(Reply::Joined(Joined { node, peers: others.collect() }))
    }
}
