//! Clients that stick to their endpoint.

use crate::cluster::{World, both, endpoint, settings};
use crate::{check, follow, outcome};
use portway_dataplane::Dataplane;
use portway_model::Family;
use portway_nftables::Nftables;
use portway_nftables::eval::{Step, Trace};
use portway_nftables::fake::Fake;
use serde_json::{Value, json};

fn sticky(more: Value) -> World {
    let mut spec = json!({
        "sessionAffinity": "ClientIP", "type": "NodePort", "externalIPs": both("ext1"),
        "ports": [{"name": "http", "port": 80, "nodePort": 30001}],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    World::new().service("web", 1, spec, json!({})).slice("web", &["a", "b", "c"].map(endpoint))
}

fn endpoints(places: &[&str]) -> Vec<Value> {
    places.iter().map(|place| endpoint(place)).collect()
}

/// Has the kernel remember what a packet on its `n`th path would have it remember.
fn remember(mode: &mut Nftables<Fake>, trace: &Trace, n: usize) {
    let before = mode.kernel().table().unwrap().clone();
    for step in &trace.paths[n].steps {
        if let Step::Remembered { set, client } = step {
            mode.kernel().remember(set, *client);
        }
    }
    assert_ne!(mode.kernel().table(), Some(&before), "nothing was remembered");
}

#[test]
fn an_unknown_client_may_go_anywhere() {
    check(
        sticky(json!({})),
        &settings(),
        &[
            ("d", "svc1:80", "a b c"),
            ("client", "svc1:80", "a b c masqueraded"),
            ("client", "node:30001", "a b c masqueraded"),
            ("a", "svc1:80", "a masqueraded or b c"),
        ],
    );
    check(
        sticky(json!({"externalTrafficPolicy": "Local"})),
        &settings(),
        &[
            ("client", "ext1:80", "a b"),
            ("client", "node:30001", "a b"),
            ("d", "ext1:80", "a b c"),
            ("node", "node:30001", "a b c masqueraded"),
            ("client", "svc1:80", "a b c masqueraded"),
        ],
    );
}

#[test]
fn a_known_client_goes_where_it_went_at_every_frontend() {
    for family in Family::ALL {
        for n in 0..3 {
            let mut mode = sticky(json!({})).programmed(family, &settings());
            let first = follow(mode.kernel().table().unwrap(), family, "client", "svc1:80");
            assert_eq!(first.paths.len(), 3);
            let met =
                outcome(family, &Trace { verdicts: vec![first.paths[n].verdict.clone()], paths: vec![] });
            remember(&mut mode, &first, n);
            for to in ["svc1:80", "node:30001", "ext1:80"] {
                let again = follow(mode.kernel().table().unwrap(), family, "client", to);
                assert_eq!(outcome(family, &again), met, "{family}: {to}");
            }
            let other = follow(mode.kernel().table().unwrap(), family, "stranger", "svc1:80");
            assert_eq!(outcome(family, &other), "a b c masqueraded");
        }
    }
}

#[test]
fn with_policy_local_inside_and_outside_are_remembered_apart() {
    for family in Family::ALL {
        let mut world = sticky(json!({"externalTrafficPolicy": "Local"}));
        let mut mode = world.programmed(family, &settings());
        let first = follow(mode.kernel().table().unwrap(), family, "client", "svc1:80");
        let at_c = first.paths.iter().position(|p| {
            outcome(family, &Trace { verdicts: vec![p.verdict.clone()], paths: vec![] }).starts_with('c')
        });
        remember(&mut mode, &first, at_c.unwrap());
        let table = mode.kernel().table().unwrap();
        assert_eq!(outcome(family, &follow(table, family, "client", "svc1:80")), "c masqueraded");
        // Policy Local does not allow c from outside, whatever was remembered inside.
        assert_eq!(outcome(family, &follow(table, family, "client", "ext1:80")), "a b");
    }
}

#[test]
fn an_endpoint_that_goes_is_forgotten_at_once() {
    for family in Family::ALL {
        let mut world = sticky(json!({}));
        let mut mode = world.programmed(family, &settings());
        let first = follow(mode.kernel().table().unwrap(), family, "client", "svc1:80");
        remember(&mut mode, &first, 0);
        let table = mode.kernel().table().unwrap().clone();
        let met = outcome(family, &follow(&table, family, "client", "svc1:80"));
        let left: Vec<&str> = ["a", "b", "c"].into_iter().filter(|p| !met.starts_with(p)).collect();
        world.apply_slice("web", json!({"name": "http", "port": 8080}), &endpoints(&left));
        let report = mode.sync(&settings(), world.changes(family)).unwrap();
        assert!(report.afterthoughts.is_empty(), "{report:?}");
        let again = follow(mode.kernel().table().unwrap(), family, "client", "svc1:80");
        assert_eq!(outcome(family, &again), format!("{} masqueraded", left.join(" ")));
        assert!(mode.verify().unwrap().is_empty());
    }
}

#[test]
fn an_endpoint_that_stays_is_not_forgotten() {
    for family in Family::ALL {
        let mut world = sticky(json!({}));
        let mut mode = world.programmed(family, &settings());
        let first = follow(mode.kernel().table().unwrap(), family, "client", "svc1:80");
        remember(&mut mode, &first, 0);
        let met = outcome(family, &follow(mode.kernel().table().unwrap(), family, "client", "svc1:80"));
        let more = endpoints(&["a", "b", "c", "d"]);
        world.apply_slice("web", json!({"name": "http", "port": 8080}), &more);
        mode.sync(&settings(), world.changes(family)).unwrap();
        let again = follow(mode.kernel().table().unwrap(), family, "client", "svc1:80");
        assert_eq!(outcome(family, &again), met);
    }
}
