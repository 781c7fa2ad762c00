//! The layout of a table changes with its rules, and reading it does not create the table.

use crate::namespace::{in_new_namespace, run};
use portway_netlink::xtables::{InfoSocket, info, tables};

const FAMILIES: [(bool, &str); 2] = [(false, "iptables-legacy"), (true, "ip6tables-legacy")];

#[test]
fn reading_a_missing_table_does_not_create_it() {
    in_new_namespace(|| {
        for (v6, _) in FAMILIES {
            assert_eq!(tables(v6), [""; 0]);
            let mut socket = InfoSocket::open(v6).unwrap();
            for table in ["nat", "filter", "nosuchtable", "a name of more than thirty-two bytes"] {
                assert_eq!(info(v6, table).unwrap(), None);
                assert_eq!(socket.info(table).unwrap(), None);
            }
            assert_eq!(tables(v6), [""; 0], "reading created a table");
        }
    });
}

#[test]
fn every_added_or_removed_rule_changes_the_layout() {
    in_new_namespace(|| {
        for (v6, iptables) in FAMILIES {
            let mut socket = InfoSocket::open(v6).unwrap();
            assert_eq!(socket.info("nat").unwrap(), None);
            run(iptables, "-w -t nat -N KUBE-SERVICES");
            assert_eq!(tables(v6), ["nat"]);
            let empty = socket.info("nat").unwrap().unwrap();
            // Four built-in chains with a policy each, a chain of two entries, and the error entry at the end.
            assert_eq!(empty.entries, 4 + 2 + 1);
            assert_eq!(info(v6, "nat").unwrap(), Some(empty), "no rule was changed");
            run(iptables, "-w -t nat -A PREROUTING -j KUBE-SERVICES");
            let with_rule = socket.info("nat").unwrap().unwrap();
            assert_eq!(with_rule.entries, empty.entries + 1);
            assert!(with_rule.size > empty.size && with_rule.underflow[0] > empty.underflow[0]);
            assert_eq!(with_rule.hooks[0], 0, "the chain of prerouting is the first");
            run(iptables, "-w -t nat -D PREROUTING -j KUBE-SERVICES");
            assert_eq!(socket.info("nat").unwrap(), Some(empty));
            // The tables of the other family are separate.
            assert_eq!(info(!v6, "mangle").unwrap(), None);
        }
    });
}

#[test]
fn each_namespace_has_its_own_tables() {
    in_new_namespace(|| {
        run("iptables-legacy", "-w -t nat -N KUBE-SERVICES");
        in_new_namespace(|| assert_eq!(info(false, "nat").unwrap(), None));
        assert!(info(false, "nat").unwrap().is_some());
    });
}
