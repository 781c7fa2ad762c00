//! Families are found by name.

use crate::namespace::alone;
use portway_netlink::genl::{Genl, family};
use portway_netlink::{Protocol, Socket};

#[test]
fn a_family_is_found_by_its_name_and_a_missing_one_is_none() {
    alone(|| {
        let mut socket = Socket::open(Protocol::Generic).unwrap();
        assert_eq!(family(&mut socket, "nlctrl").unwrap(), Some(0x10));
        assert_eq!(family(&mut socket, "nosuchfamily").unwrap(), None);
        assert_eq!(Genl::open("nlctrl", 2).unwrap().map(|genl| genl.id()), Some(0x10));
        assert!(Genl::open("nosuchfamily", 1).unwrap().is_none());
    });
}
