//! Clients that stick to their endpoint.

use crate::cluster::{World, both, endpoint, settings};
use crate::{check, host, outcome, packet};
use portway_dataplane::Dataplane;
use portway_iptables::Iptables;
use portway_iptables::eval::{Host, Ruleset, Step, Trace, eval};
use portway_iptables::fake::Fake;
use portway_model::Family;
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

/// Follows a packet on a machine that remembers clients.
fn meets(mode: &mut Iptables<Fake>, host: &Host, from: &str, to: &str) -> Trace {
    let family = mode.family();
    let rules = Ruleset::parse(&mode.kernel().tables().to_string());
    eval(&rules, family, &packet(family, from, to), host)
}

/// Has the machine remember what a packet would have it remember on the path to a place.
fn remember(host: &mut Host, family: Family, trace: &Trace, place: &str) {
    let leads = |verdict| outcome(family, &Trace { verdicts: vec![verdict], paths: vec![] });
    let path = trace.paths.iter().find(|p| leads(p.verdict.clone()).starts_with(place)).unwrap();
    let before = host.recent.len();
    for step in &path.steps {
        if let Step::Remembered { list, client } = step {
            host.recent.insert((list.clone(), *client));
        }
    }
    assert!(host.recent.len() > before, "nothing was remembered");
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
        for place in ["a", "b", "c"] {
            let mut mode = sticky(json!({})).programmed(family, &settings());
            let mut host = host(family);
            let first = meets(&mut mode, &host, "client", "svc1:80");
            assert_eq!(first.paths.len(), 3);
            remember(&mut host, family, &first, place);
            for to in ["svc1:80", "node:30001", "ext1:80"] {
                let again = outcome(family, &meets(&mut mode, &host, "client", to));
                assert_eq!(again, format!("{place} masqueraded"), "{family}: {to}");
            }
            let other = meets(&mut mode, &host, "stranger", "svc1:80");
            assert_eq!(outcome(family, &other), "a b c masqueraded");
        }
    }
}

#[test]
fn with_policy_local_only_what_is_here_is_remembered_outside() {
    for family in Family::ALL {
        let mut mode = sticky(json!({"externalTrafficPolicy": "Local"})).programmed(family, &settings());
        for (place, outside) in [("c", "a b"), ("b", "b")] {
            let mut host = host(family);
            let first = meets(&mut mode, &host, "client", "svc1:80");
            remember(&mut host, family, &first, place);
            let inside = outcome(family, &meets(&mut mode, &host, "client", "svc1:80"));
            assert_eq!(inside, format!("{place} masqueraded"));
            // Policy Local does not allow c from outside, whatever was remembered inside.
            assert_eq!(outcome(family, &meets(&mut mode, &host, "client", "ext1:80")), outside);
        }
    }
}

#[test]
fn an_endpoint_that_goes_is_forgotten_at_once_and_others_are_not() {
    for family in Family::ALL {
        let mut world = sticky(json!({}));
        let mut mode = world.programmed(family, &settings());
        let mut host = host(family);
        let first = meets(&mut mode, &host, "client", "svc1:80");
        remember(&mut host, family, &first, "b");
        for (places, expected) in [
            (&["a", "b", "c", "d"][..], "b masqueraded"),
            (&["b", "c"], "b masqueraded"),
            (&["a", "c"], "a c masqueraded"),
        ] {
            world.apply_slice("web", json!({"name": "http", "port": 8080}), &endpoints(places));
            mode.sync(&settings(), world.changes(family)).unwrap();
            let again = meets(&mut mode, &host, "client", "svc1:80");
            assert_eq!(outcome(family, &again), expected, "{places:?}");
        }
    }
}
