//! Links of drivers: one to each member, whoever asks for it.

use freebs_agent::{DriverLinks, Wanted};
use freebs_driver::Event;
use freebs_io::LinkId;
use freebs_types::{NodeId, Peer};

const PEER: Peer = Peer { node: NodeId(3), worker: 1 };
const LINK: LinkId = LinkId(7);

fn is_up(event: &Event) -> bool {
    match event {
        Event::LinkUp(PEER) => true,
        Event::LinkDown(PEER) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_dials_and_all_hear() {
    let mut links = DriverLinks::default();
    assert_eq!((links.want(PEER), links.want(PEER)), (Wanted::Dial, Wanted::Opening));
    assert_eq!((links.link(PEER), links.open().count()), (None, 0));
    assert!(!is_up(&links.opened(PEER, None)));
    assert_eq!(links.want(PEER), Wanted::Dial, "it failed, so the next one tries");
    assert!(is_up(&links.opened(PEER, Some(LINK))));
    assert_eq!((links.want(PEER), links.link(PEER)), (Wanted::Open(LINK), Some(LINK)));
    assert_eq!(links.open().collect::<Vec<_>>(), [LINK]);
}

#[test]
fn the_end_of_an_older_link_says_nothing_of_the_one_in_its_place() {
    let mut links = DriverLinks::default();
    links.want(PEER);
    links.opened(PEER, Some(LINK));
    assert!(links.closed(PEER, LinkId(6)).is_none());
    assert!(!is_up(&links.closed(PEER, LINK).unwrap()));
    assert!(links.closed(PEER, LINK).is_none(), "it is told once");
    assert_eq!(links.want(PEER), Wanted::Dial);
}

/// A driver would trust for ever in a link that went down before it was told of it.
#[test]
fn a_link_that_was_found_open_may_be_gone_when_that_is_told() {
    let mut links = DriverLinks::default();
    links.want(PEER);
    links.opened(PEER, Some(LINK));
    let Wanted::Open(found) = links.want(PEER) else { panic!() };
    assert!(is_up(&links.news(PEER, found)));
    links.closed(PEER, LINK);
    assert!(!is_up(&links.news(PEER, found)));
    links.want(PEER);
    links.opened(PEER, Some(LinkId(8)));
    assert!(!is_up(&links.news(PEER, found)), "another link: this driver hears of it with the others");
}

/// The end of a link was heard before its beginning: drivers trusted in it for ever.
#[test]
fn a_link_that_ends_before_it_is_told_of_is_none() {
    let mut links = DriverLinks::default();
    links.want(PEER);
    assert!(links.closed(PEER, LINK).is_none() && links.closed(PEER, LinkId(6)).is_none());
    assert!(!is_up(&links.opened(PEER, Some(LINK))));
    assert_eq!((links.link(PEER), links.want(PEER)), (None, Wanted::Dial));
    // The end of an earlier one is not that of the next.
    assert!(links.closed(PEER, LINK).is_none());
    assert!(is_up(&links.opened(PEER, Some(LinkId(8)))));
}
