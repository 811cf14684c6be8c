//! Tokens are made, and nodes join with them.

use super::client::Client;
use super::service::Service;
use crate::events::now_ms;
use crate::identity::{self, to_hex};
use crate::options::check_reachable;
use crate::timing;
use freebs_control::api::{JoinRequest, Joined, Reply, Request, Secret, TokenStatus};
use freebs_control::cluster_file::ClusterPeer;
use freebs_control::events::TOKEN_ID_DIGITS;
use freebs_control::removal::FIRST;
use freebs_control::{Command, ControlPlane, NewNode, Outcome, State, Token, rules};
use freebs_format::keys::{JOIN_SECRET_BYTES, JoinToken, KeyOf};
use freebs_identity::{SigningKey, certify};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{Error, Hash32, HostPublic, NodeId, Result};
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

    /// Tokens that the cluster knows, the oldest first.
    pub(super) async fn list_tokens(&self) -> Result<Reply> {
        self.authority()?;
        self.newest().await?;
        let state = self.state()?;
        let mut tokens: Vec<_> = state.joining().tokens().map(|t| shown(&state, t)).collect();
        tokens.sort_by(|a, b| (a.made_ms, &a.id).cmp(&(b.made_ms, &b.id)));
        Ok(Reply::Tokens { tokens })
    }

    /// Ends the token whose number begins so, or all that nobody used.
    pub(super) async fn revoke_tokens(&self, of: &str) -> Result<Reply> {
        self.authority()?;
        self.newest().await?;
        let state = self.state()?;
        let named: Vec<Token> = match of {
            "all" => state.joining().tokens().filter(|t| t.used_by.is_none()).copied().collect(),
            _ => vec![named(&state, of)?],
        };
        self.end_tokens(&named.iter().map(|t| t.hash).collect::<Vec<_>>()).await
    }

    /// Ends these. A node may use one of them at the same time, and that is said: it is a member then.
    async fn end_tokens(&self, tokens: &[Hash32]) -> Result<Reply> {
        if !tokens.is_empty() {
            self.plane.submit(Command::RevokeTokens { tokens: tokens.to_vec() }).await?;
        }
        // The state here has the revision by now.
        let state = self.state()?;
        let left = state.joining().tokens().filter(|t| tokens.contains(&t.hash) && t.used_by.is_some());
        let left: Vec<&Token> = left.collect();
        let gone = tokens.iter().filter(|hash| left.iter().all(|t| t.hash != **hash));
        Ok(Reply::Revoked {
            tokens: gone.map(|hash| short(*hash)).collect(),
            used: left.iter().map(|t| shown(&state, t)).collect(),
        })
    }

    /// The key that nodes are certified with, if it lies here.
    async fn authority_key(&self) -> Result<Option<SigningKey>> {
        let (Some(data), here) = (self.keys(), self.me().cluster) else { return Ok(None) };
        let read = tokio::task::spawn_blocking(move || identity::load(&data, KeyOf::Authority, here));
        let key = read.await.map_err(|e| Error::bug(format!("a key could not be read: {e}")))??;
        match key {
            Some(key) if key.public() != self.authority()? => {
                Err(Error::invalid(format!("the file authority-key of {} is of another authority", self.me().name)))
            }
            key => Ok(key),
        }
    }

    /// Asks the node that has made the cluster, which has the authority's key.
    async fn join_elsewhere(&self, of: JoinRequest) -> Result<Reply> {
        let without = |e: &Error| {
            let name = &self.me().name;
            Error {
                kind: e.kind,
                text: format!("{name} does not have the authority's key, so it asks for it: {e}").into(),
            }
        };
        let state = self.state()?;
        let first = state.node(FIRST).filter(|_| self.me().id != FIRST).ok_or_else(|| {
            Error::invalid(format!(
                "{} does not have the authority's key, without which no node can be certified; put the file authority-key \
                 back into its data directory",
                self.me().name
            ))
        })?;
        let client = Client::connect_to(first).await.map_err(|e| without(&e))?;
        client.call(&Request::Join(of), timing::COMMAND_MAX).await
    }

    /// Refuses a token that the newest state does not know, before anybody is asked to do anything.
    async fn check_known(&self, token: Hash32) -> Result<()> {
        let is_known = || Ok::<_, Error>(self.state()?.joining().token(&token).is_some());
        if is_known()? {
            return Ok(());
        }
        let late = |_| Err(Error::retry("whether the token is good can't be found out right now"));
        tokio::time::timeout(timing::TOKEN_LOOK_MAX, self.newest()).await.unwrap_or_else(late)?;
        if is_known()? { Ok(()) } else { Err(rules::unknown_token()) }
    }

    /// Refuses a node that says that it is this member, and is not: it would become a new one.
    fn check_is(&self, member: NodeId, identity: HostPublic) -> Result<()> {
        let state = self.state()?;
        state.check_removed(member)?;
        match state.node(member).and_then(|n| n.identity) {
            Some(known) if known == identity => Ok(()),
            _ => Err(Error::invalid(format!("the cluster does not know this key as that of node {member}"))),
        }
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
        if !freebs_identity::is_signed(of.identity, &of.claim(token.hash()), &of.proof) {
            return Err(Error::invalid("who asks does not have the secret half of the key that it says is its own"));
        }
        let address: SocketAddr = of.address.parse().map_err(|_| {
            Error::invalid(format!("'{}' is no address of a node; it is HOST:PORT in numbers", of.address))
        })?;
        check_reachable(address)?;
        rules::check_node(&of.name, &of.address, of.workers)?;
        let _one_of_few = self.one_of_few().await?;
        self.check_known(token.hash()).await?;
        if let Some(member) = of.member {
            self.check_is(member, of.identity)?;
        }
        let Some(key) = self.authority_key().await? else { return self.join_elsewhere(of).await };
        let identity = of.identity;
        let new = NewNode {
            token: token.hash(),
            identity,
            name: of.name,
            // In one way of writing it, so that a place is not given twice.
            address: address.to_string(),
            workers: of.workers,
            now_ms: now_ms(),
        };
        let done = self.plane.submit(Command::AddNode(new)).await?;
        let Outcome::Added { node } = done.outcome else { return Err(Error::bug("a node was added otherwise")) };
        // The state here has the revision by now.
        let state = self.state()?;
        let others = state.nodes().filter(|n| n.id != node).map(|n| ClusterPeer::from(&**n));
        let certificate = to_hex(&certify(&key, here, node, &identity)?);
        Ok(Reply::Joined(Joined { node, peers: others.collect(), certificate }))
    }
}

/// The number that people know a token by: the first digits of its hash.
fn short(hash: Hash32) -> String {
    hash.to_string().chars().take(TOKEN_ID_DIGITS).collect()
}

fn shown(state: &State, token: &Token) -> TokenStatus {
    let name = |node| state.node(node).map_or_else(|| format!("node {node}"), |n| n.name.clone());
    TokenStatus {
        id: short(token.hash),
        made_ms: token.made_ms,
        expires_ms: token.expires_ms,
        used_by: token.used_by.map(name),
    }
}

/// The one token that can be revoked whose number begins so.
fn named(state: &State, prefix: &str) -> Result<Token> {
    let is_one = |t: &&Token| !prefix.is_empty() && t.hash.to_string().starts_with(prefix);
    let mut all = state.joining().tokens().filter(is_one);
    let which = match (all.next(), all.next()) {
        (Some(one), None) => *one,
        (None, _) => {
            return Err(Error::not_found(format!(
                "there is no token '{prefix}'; `freebs cluster token --list` shows those there are"
            )));
        }
        (Some(_), Some(_)) => {
            return Err(Error::invalid(format!(
                "several tokens begin with '{prefix}'; `freebs cluster token --list` shows more of them"
            )));
        }
    };
    match which.used_by {
        Some(node) => Err(Error::invalid(format!(
            "the token {} was used by {} and is good for nothing any more",
            short(which.hash),
            state.node(node).map_or_else(|| format!("node {node}"), |n| n.name.clone())
        ))),
        None => Ok(which),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CLUSTER, Node, ask, first_of_all};
    use super::*;
    use crate::admin::Authority;
    use freebs_control::api::Request;
    use freebs_identity::SigningKey;
    use freebs_types::ErrorKind;
    use std::path::Path;

    /// With the authority's key beside it.
    async fn first(dir: &Path) -> Node {
        let key = identity::load_or_make(dir, KeyOf::Authority, CLUSTER).unwrap().public();
        let node = first_of_all(dir, Authority { key, identity: HostPublic([1; 32]) }).await;
        node.service.certify_from(dir.into());
        node
    }

    fn request(token: &Secret, key: &SigningKey, address: &str) -> JoinRequest {
        let hash = JoinToken::parse(&token.0).unwrap().hash();
        let mut of = JoinRequest {
            token: token.clone(),
            identity: key.public(),
            name: "b".into(),
            address: address.into(),
            workers: 1,
            member: None,
            proof: Vec::new(),
        };
        of.proof = key.sign(&of.claim(hash)).unwrap();
        of
    }

    /// With a token that was used and the key's public half, which all are told, anybody could move a node that had not run
    /// yet; and `Submit` let who asked say what time it is.
    #[tokio::test]
    async fn who_asks_has_the_key_and_there_is_no_way_around() {
        let dir = tempfile::tempdir().unwrap();
        let node = first(dir.path()).await;
        let reply = ask(&node, Request::TokenCreate { valid_ms: 60_000 }).await.unwrap();
        let Reply::Token { token, .. } = reply else { panic!("{reply:?}") };
        let (mine, other) = (SigningKey::new(&Hash32([5; 32])).unwrap(), SigningKey::new(&Hash32([6; 32])).unwrap());
        let good = request(&token, &mine, "127.0.0.1:7401");
        let refused = async |of: JoinRequest, says: &str| {
            let e = ask(&node, Request::Join(of)).await.unwrap_err();
            assert!(e.kind == ErrorKind::Invalid && e.text.contains(says), "{e}");
        };
        let stolen = JoinRequest { identity: mine.public(), ..request(&token, &other, "127.0.0.1:7401") };
        refused(stolen, "the secret half").await;
        refused(JoinRequest { address: "127.0.0.1:7402".into(), ..good.clone() }, "the secret half").await;
        refused(request(&token, &mine, "127.0.0.1:0"), "nobody reaches").await;
        refused(request(&token, &mine, "0.0.0.0:7401"), "nobody reaches").await;
        let now_ms = now_ms();
        let hash = Hash32([3; 32]);
        let new = NewNode {
            token: JoinToken::parse(&token.0).unwrap().hash(),
            identity: mine.public(),
            name: "c".into(),
            address: "127.0.0.1:7403".into(),
            workers: 1,
            now_ms,
        };
        for command in [
            Command::AddNode(new),
            Command::MakeToken { token: hash, expires_ms: now_ms + 1, now_ms },
            Command::RevokeTokens { tokens: vec![hash] },
        ] {
            let e = ask(&node, Request::Submit { command }).await.unwrap_err();
            assert!(e.text.contains("requests of their own"), "{e}");
        }
        let reply = ask(&node, Request::Join(good)).await.unwrap();
        let Reply::Joined(joined) = reply else { panic!("{reply:?}") };
        assert_eq!((joined.node, joined.peers.len(), joined.peers[0].id), (NodeId(2), 1, NodeId(1)));
        let (certificate, authority) =
            (identity::from_hex(&joined.certificate).unwrap(), node.service.authority().unwrap());
        freebs_identity::check_own(&certificate, CLUSTER, &authority, NodeId(2), &mine.public()).unwrap();
        // Without the authority's key nobody is taken in.
        std::fs::remove_file(dir.path().join("authority-key")).unwrap();
        let reply = ask(&node, Request::TokenCreate { valid_ms: 60_000 }).await.unwrap();
        let Reply::Token { token, .. } = reply else { panic!("{reply:?}") };
        refused(request(&token, &other, "127.0.0.1:7409"), "put the file authority-key").await;
        assert!(node.service.state().unwrap().node(NodeId(3)).is_none());
    }

    /// A leaked token was used while it was being ended, and the answer was that it is ended.
    #[tokio::test]
    async fn a_token_that_is_used_meanwhile_is_not_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let node = first(dir.path()).await;
        let mut made = Vec::new();
        for _ in 0..2 {
            let reply = ask(&node, Request::TokenCreate { valid_ms: 60_000 }).await.unwrap();
            let Reply::Token { token, .. } = reply else { panic!("{reply:?}") };
            made.push(token);
        }
        let hashes: Vec<_> = made.iter().map(|t| JoinToken::parse(&t.0).unwrap().hash()).collect();
        let key = SigningKey::new(&Hash32([5; 32])).unwrap();
        // Written otherwise than the node writes it.
        ask(&node, Request::Join(request(&made[0], &key, "[0:0:0:0:0:0:0:1]:7401"))).await.unwrap();
        assert_eq!(node.service.state().unwrap().node(NodeId(2)).unwrap().address, "[::1]:7401");
        let reply = node.service.end_tokens(&hashes).await.unwrap();
        let Reply::Revoked { tokens, used } = reply else { panic!("{reply:?}") };
        assert_eq!(tokens, [short(hashes[1])]);
        assert_eq!((used.len(), used[0].id.clone(), used[0].used_by.as_deref()), (1, short(hashes[0]), Some("b")));
        let Reply::Tokens { tokens } = ask(&node, Request::TokenList).await.unwrap() else { panic!("a list") };
        assert_eq!(tokens.len(), 1);
    }
}
