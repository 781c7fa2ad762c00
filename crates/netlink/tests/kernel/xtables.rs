//! A table's shape follows what `iptables-legacy` does, and looking leaves no trace.

use crate::namespace::{alone, run};
use portway_netlink::xtables::{Watch, info, tables};

const FAMILIES: [(bool, &str); 2] = [(false, "iptables-legacy"), (true, "ip6tables-legacy")];

#[test]
fn looking_at_a_table_that_is_not_there_does_not_make_it() {
    alone(|| {
        for (v6, _) in FAMILIES {
            assert_eq!(tables(v6), [""; 0]);
            let mut watch = Watch::open(v6).unwrap();
            for table in ["nat", "filter", "nosuchtable", "a name of more than thirty-two bytes"] {
                assert_eq!(info(v6, table).unwrap(), None);
                assert_eq!(watch.info(table).unwrap(), None);
            }
            assert_eq!(tables(v6), [""; 0], "looking made a table");
        }
    });
}

#[test]
fn every_rule_added_or_removed_changes_the_shape() {
    alone(|| {
        for (v6, iptables) in FAMILIES {
            let mut watch = Watch::open(v6).unwrap();
            assert_eq!(watch.info("nat").unwrap(), None);
            run(iptables, "-w -t nat -N KUBE-SERVICES");
            assert_eq!(tables(v6), ["nat"]);
            let empty = watch.info("nat").unwrap().unwrap();
            // Four built-in chains with a policy each, a chain of two entries, and the closing error entry.
            assert_eq!(empty.entries, 4 + 2 + 1);
            assert_eq!(info(v6, "nat").unwrap(), Some(empty), "nothing happened");
            run(iptables, "-w -t nat -A PREROUTING -j KUBE-SERVICES");
            let ruled = watch.info("nat").unwrap().unwrap();
            assert_eq!(ruled.entries, empty.entries + 1);
            assert!(ruled.size > empty.size && ruled.underflow[0] > empty.underflow[0]);
            assert_eq!(ruled.hooks[0], 0, "prerouting comes first");
            run(iptables, "-w -t nat -D PREROUTING -j KUBE-SERVICES");
            assert_eq!(watch.info("nat").unwrap(), Some(empty));
            // The other family is another world.
            assert_eq!(info(!v6, "mangle").unwrap(), None);
        }
    });
}

#[test]
fn another_namespace_has_its_own_tables() {
    alone(|| {
        run("iptables-legacy", "-w -t nat -N KUBE-SERVICES");
        alone(|| assert_eq!(info(false, "nat").unwrap(), None));
        assert!(info(false, "nat").unwrap().is_some());
    });
}
