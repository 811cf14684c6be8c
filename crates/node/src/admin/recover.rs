//! Going on without members that are lost (rule V10): what the nodes say of their logs, and the commands that follow.
//!
//! Invariant: what is decided is what the operator was shown, and accepted by its word.

use super::service::Service;
use super::status;
use freebs_control::ControlPlane;
use freebs_control::api::Reply;
use freebs_control::recover::{Need, Recovery, look, word};
use freebs_types::{Error, Result};

/// Says of each shard whether it goes on by itself, and what it costs if it does not. With the word of exactly this as
/// `accepted` it goes on. An error if no shard needs anything.
pub(super) async fn recover(service: &Service, name: &str, accepted: Option<&str>) -> Result<Reply> {
    service.newest().await?;
    let state = service.state()?;
    let volume = state.need(name)?.clone();
    let (logs, silent) = status::logs(service, &state, volume.id).await;
    let (mut shards, commands): (Vec<_>, Vec<_>) = look(&state, &volume, &logs, &silent).into_iter().unzip();
    if shards.iter().all(|s| s.need == Need::Nothing) {
        return Err(Error::invalid(format!(
            "nothing of volume '{name}' needs recovery: enough members of each shard answer, and it goes on with them by \
             itself; `freebs volume show {name}` says how it is"
        )));
    }
    let word = word(commands.iter().flatten())?;
    let is_accepted = !word.is_empty() && accepted == Some(word.as_str());
    let mut decided = false;
    for (shard, command) in shards.iter_mut().zip(commands).filter(|_| is_accepted) {
        match command.map(|c| service.plane.submit(c)) {
            None => {}
            Some(deciding) => match deciding.await {
                Ok(_) => decided = true,
                // Other shards go on by now, and that has to be told.
                Err(e) if decided => {
                    (shard.need, shard.why, shard.plan) = (Need::Help, format!("{e}; ask again"), None);
                }
                Err(e) => return Err(e),
            },
        }
    }
    Ok(Reply::Recovery(Recovery { volume: volume.name.clone(), decided, shards, word }))
}
