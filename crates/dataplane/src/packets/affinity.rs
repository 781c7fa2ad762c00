//! Clients that stick to their endpoint.

use super::{Case, Scene};
use crate::world::{World, both, endpoint};
use serde_json::{Value, json};

pub(super) const CASES: &[Case] = named![
    "affinity":
    an_unknown_client_may_go_anywhere,
    a_known_client_goes_where_it_went_at_every_frontend,
    with_policy_local_nobody_is_led_elsewhere_from_outside,
    an_endpoint_that_goes_is_forgotten_at_once,
    an_endpoint_is_not_forgotten_until_it_goes,
];

/// A Service whose clients stick, at `svc1`, `ext1` and node port 30001, with endpoints `a`, `b` and `c`; `more` adds
/// to its spec.
pub fn sticky(more: Value) -> World {
    let mut spec = json!({
        "sessionAffinity": "ClientIP", "type": "NodePort", "externalIPs": both("ext1"),
        "ports": [{"name": "http", "port": 80, "nodePort": 30001}],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    World::new().service("web", 1, spec, json!({})).slice("web", &PLACES.map(endpoint))
}

const PLACES: [&str; 3] = ["a", "b", "c"];
/// What becomes of a client that is known at each.
const THERE: [&str; 3] = ["a masqueraded", "b masqueraded", "c masqueraded"];
/// What becomes of one that was known there if the endpoint goes.
const OTHERS: [&str; 3] = ["b c masqueraded", "a c masqueraded", "a b masqueraded"];

/// One scene for each place at which a client was: the place, and the scene so far.
fn known(scene: impl Fn(usize, Scene) -> Scene) -> Vec<Scene> {
    let meets = |place| {
        let first = [("client", "svc1:80", "a b c masqueraded")];
        Scene::new(sticky(json!({})), &first).meets("client", "svc1:80", place)
    };
    PLACES.into_iter().enumerate().map(|(i, place)| scene(i, meets(place))).collect()
}

fn an_unknown_client_may_go_anywhere() -> Vec<Scene> {
    let cluster = Scene::new(
        sticky(json!({})),
        &[
            ("d", "svc1:80", "a b c"),
            ("client", "svc1:80", "a b c masqueraded"),
            ("client", "node:30001", "a b c masqueraded"),
            ("a", "svc1:80", "a masqueraded or b c"),
        ],
    );
    let local = Scene::new(
        sticky(json!({"externalTrafficPolicy": "Local"})),
        &[
            ("client", "ext1:80", "a b"),
            ("client", "node:30001", "a b"),
            ("d", "ext1:80", "a b c"),
            ("node", "node:30001", "a b c masqueraded"),
            ("client", "svc1:80", "a b c masqueraded"),
        ],
    );
    vec![cluster, local]
}

fn a_known_client_goes_where_it_went_at_every_frontend() -> Vec<Scene> {
    known(|i, scene| {
        let again = ["svc1:80", "node:30001", "ext1:80"].map(|to| ("client", to, THERE[i]));
        scene.rows(&again).rows(&[("stranger", "svc1:80", "a b c masqueraded")])
    })
}

fn with_policy_local_nobody_is_led_elsewhere_from_outside() -> Vec<Scene> {
    let scene = Scene::new(sticky(json!({"externalTrafficPolicy": "Local"})), &[])
        .meets("client", "svc1:80", "c")
        // Policy Local does not allow c from outside, whatever was remembered inside.
        .rows(&[("client", "svc1:80", "c masqueraded"), ("client", "ext1:80", "a b")]);
    vec![scene]
}

fn an_endpoint_that_goes_is_forgotten_at_once() -> Vec<Scene> {
    known(|i, scene| scene.endpoints("web", &without(PLACES[i])).rows(&[("client", "svc1:80", OTHERS[i])]))
}

fn an_endpoint_is_not_forgotten_until_it_goes() -> Vec<Scene> {
    known(|i, scene| {
        let stays = [("client", "svc1:80", THERE[i])];
        scene
            .endpoints("web", &["a", "b", "c", "d"])
            .rows(&stays)
            .endpoints("web", &[PLACES[i], PLACES[(i + 1) % 3]])
            .rows(&stays)
            .endpoints("web", &without(PLACES[i]))
            .rows(&[("client", "svc1:80", OTHERS[i])])
    })
}

fn without(place: &str) -> Vec<&'static str> {
    PLACES.into_iter().filter(|p| *p != place).collect()
}
