//! Attachments that are ended by a command: this node takes the volume over, and gives it back.
//!
//! A command to the control plane alone would make the volume nobody's, and its driver would go on answering: what ends
//! its leases is a newer generation that the members know (rule L2). So somebody has to attach, and that can be any node.

use super::service::Service;
use freebs_control::api::Reply;
use freebs_types::Result;

impl Service {
    /// Ends whatever attachment a volume has. `Busy` if its driver is there, unless `force`.
    pub(super) async fn detach(&self, name: &str, force: bool) -> Result<Reply> {
        // A copy of the state that lags may show it as nobody's.
        self.newest().await?;
        let volume = self.state()?.need(name)?.clone();
        let from = volume.holder.as_ref().map(|h| h.name.clone());
        // One that was given back before its driver was ready may have a driver of an earlier generation behind it.
        if from.is_some() || volume.settled != volume.generation {
            self.local.expel(volume.id, force).await?;
        }
        Ok(Reply::Detached { from, generation: volume.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ask, cluster, create, level, register};
    use super::*;
    use freebs_control::api::Request;
    use freebs_control::{Command, ControlPlane};
    use freebs_types::{ErrorKind, Generation, Hash32, VolumeId};

    #[tokio::test]
    async fn any_node_ends_an_attachment_with_force() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = cluster(dir.path(), 3).await;
        register(&nodes[0], 1, 1).await;
        ask(&nodes[0], Request::VolumeCreate(create("demo"))).await.unwrap();
        level(&nodes).await;
        let detach = |force| Request::VolumeDetach { name: "demo".into(), force };
        let (from, generation) = (None, Generation(0));
        assert_eq!(ask(&nodes[1], detach(false)).await, Ok(Reply::Detached { from, generation }));
        let attach = Command::AttachVolume {
            volume: VolumeId(1),
            identity: Hash32([1; 32]),
            name: "gateway".into(),
            force: false,
            since: None,
            lapsed: false,
        };
        nodes[2].plane.submit(attach.clone()).await.unwrap();
        assert_eq!(ask(&nodes[1], detach(false)).await.unwrap_err().kind, ErrorKind::Busy);
        let (from, generation) = (Some("gateway".into()), Generation(1));
        assert_eq!(ask(&nodes[1], detach(true)).await, Ok(Reply::Detached { from, generation }));
        let asked = nodes[1].fake.expelled.lock().unwrap().clone();
        assert_eq!(asked, [(VolumeId(1), false), (VolumeId(1), true)], "nobody had it at first");
        // Given back: whoever had it before may be there still, unless the last driver had waited for that.
        for (generation, settled) in [(Generation(1), false), (Generation(2), true)] {
            let given_back = Command::DetachVolume { volume: VolumeId(1), generation, settled };
            nodes[2].plane.submit(given_back).await.unwrap();
            let nobody = Ok(Reply::Detached { from: None, generation });
            assert_eq!(ask(&nodes[1], detach(true)).await, nobody);
            let asked = nodes[1].fake.expelled.lock().unwrap().len();
            assert_eq!(asked, 3, "settled {settled}");
            nodes[2].plane.submit(attach.clone()).await.unwrap();
        }
        let unknown = Request::VolumeDetach { name: "other".into(), force: true };
        assert_eq!(ask(&nodes[1], unknown).await.unwrap_err().kind, ErrorKind::NotFound);
    }
}
