//! From any state, mirroring reaches a fixed point in bounded writes, with exactly the addresses of the object.

use crate::mirroring::reconcile;
use crate::testing::*;
use portway_api::Endpoints;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// An address, a port, and whether it is ready.
type Address = (u8, i32, bool);

fn object(addresses: &[Address]) -> Endpoints {
    let mut object = endpoints_object("web", &[], &[]);
    object.subsets = addresses
        .iter()
        .flat_map(|(ip, port, ready)| {
            let ip = format!("192.0.2.{ip}");
            let (ready, unready) = if *ready { (vec![&*ip], vec![]) } else { (vec![], vec![&*ip]) };
            let mut subsets = endpoints_object("web", &ready, &unready).subsets;
            subsets[0].ports[0].port = *port;
            subsets
        })
        .collect();
    object
}

#[derive(Clone, Debug)]
enum Step {
    Object(Vec<Address>),
    Selector(bool),
    Delete,
    /// Some of the writes of a plan are done.
    Partly(usize),
    Tamper,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec((0u8..5, 1i32..4, any::<bool>()), 0..6).prop_map(Step::Object),
        1 => any::<bool>().prop_map(Step::Selector),
        1 => Just(Step::Delete),
        3 => (0usize..3).prop_map(Step::Partly),
        1 => Just(Step::Tamper),
    ];
    prop::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_state_leads_to_the_addresses_of_the_object(steps in steps()) {
        let service = |selects: bool| service_with("web", |spec| if !selects { spec.selector.clear() });
        let mut api = TestApi::new().with(service(false));
        let (mut addresses, mut selects): (Vec<Address>, bool) = (Vec::new(), false);
        for step in steps {
            match step {
                Step::Object(new) => {
                    api.apply(object(&new));
                    addresses = new;
                }
                Step::Selector(now) => {
                    api.apply(service(now));
                    selects = now;
                }
                Step::Delete => {
                    api.delete::<Endpoints>("web");
                    addresses.clear();
                }
                Step::Partly(count) => {
                    for reasoned in reconcile(&api.cluster, &key("web"), 1000).writes.iter().take(count) {
                        prop_assert_eq!(api.write(&reasoned.write), Ok(()));
                    }
                }
                Step::Tamper => {
                    if let Some(slice) = api.slices.keys().next().cloned() {
                        api.tamper(&slice, |slice| slice.endpoints.clear());
                    }
                }
            }
        }
        api.write_mirrored("web");
        let mut expected: BTreeMap<(String, i32), bool> = BTreeMap::new();
        for (ip, port, ready) in addresses.into_iter().filter(|_| !selects) {
            *expected.entry((format!("192.0.2.{ip}"), port)).or_insert(true) &= ready;
        }
        let mut found: BTreeMap<(String, i32), bool> = BTreeMap::new();
        for slice in api.slices.values() {
            for endpoint in &slice.endpoints {
                let port = slice.ports[0].port.unwrap_or_default();
                let ready = endpoint.conditions.is_some_and(|c| c.ready == Some(true));
                prop_assert_eq!(found.insert((endpoint.addresses[0].clone(), port), ready), None);
            }
        }
        prop_assert_eq!(found, expected);
    }
}
