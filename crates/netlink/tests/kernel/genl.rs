//! Generic netlink families are found by name.

use crate::namespace::in_new_namespace;
use portway_netlink::genl::{Genl, family};
use portway_netlink::{Protocol, Socket};

/// The number of the family `nlctrl`.
const GENL_ID_CTRL: u16 = 0x10;

#[test]
fn an_existing_family_is_found_and_a_missing_one_is_not() {
    in_new_namespace(|| {
        let mut socket = Socket::open(Protocol::Generic).unwrap();
        assert_eq!(family(&mut socket, "nlctrl").unwrap(), Some(GENL_ID_CTRL));
        assert_eq!(family(&mut socket, "nosuchfamily").unwrap(), None);
        assert_eq!(Genl::open("nlctrl", 2).unwrap().map(|genl| genl.id()), Some(GENL_ID_CTRL));
        assert!(Genl::open("nosuchfamily", 1).unwrap().is_none());
    });
}
