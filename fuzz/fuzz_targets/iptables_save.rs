//! What `iptables-save` prints, which is whatever anybody put into the tables.
//!
//! A rule that is read is printed so that it reads as the same rule. A listing is compared with nothing wanted, as when
//! cleaning up, and with a Service wanted; what has to be done about it can be written down, and written into a kernel
//! that held it, nothing more is to be done.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_dataplane::{Dataplane, Settings};
use portway_iptables::diff::World;
use portway_iptables::fake::Fake;
use portway_iptables::listing::{Listing, Wanted};
use portway_iptables::reconcile::reconcile;
use portway_iptables::render::{Abilities, base};
use portway_iptables::rules::Rule;
use portway_iptables::{Iptables, Variant, leftovers};
use portway_model::{
    Family, Frontend, FrontendKind, PortPlan, Protocol, ServiceName, ServicePlan, Target, TrafficPolicy,
};
use std::collections::HashMap;

fuzz_target!(|text: &str| {
    text.lines().for_each(rule);
    listing(text);
    kernel(text);
});

/// One rule, with or without its chain.
fn rule(line: &str) {
    let behind = line.strip_prefix("-A ").and_then(|l| l.split_once(' ')).map_or(line, |(_, rule)| rule);
    let Some(rule) = Rule::parse(behind) else { return };
    let printed = rule.to_string();
    assert_eq!(Rule::parse(&printed).as_ref(), Some(&rule), "{printed}");
}

/// A listing, compared.
fn listing(text: &str) {
    let settings = Settings::default();
    let base = base(Family::V4, &settings, Abilities::default());
    let plans = HashMap::from([(name(), web())]);
    let left_out = Default::default();
    let world =
        World { family: Family::V4, settings: &settings, base: &base, plans: &plans, left_out: &left_out };
    for wanted in [Wanted::default(), Wanted::of(world)] {
        let mut listing = Listing::new(&wanted);
        text.lines().for_each(|line| listing.line(line));
        let (_, drift) = reconcile(&listing.finish(), &wanted, world);
        let _ = drift.to_string();
    }
}

/// A kernel that holds it, if one can.
fn kernel(text: &str) {
    let mut kernel = Fake::new(Family::V4, Variant::Legacy);
    if kernel.run(text).is_err() {
        return;
    }
    let mut mode = Iptables::with_kernel(kernel, Family::V4);
    mode.sync(&Settings::default(), vec![(name(), Some(web()))]).expect("it can be made good");
    let drift = mode.verify().expect("it can be listed");
    assert!(drift.is_empty(), "{drift}");
    mode.cleanup().expect("it can be cleaned up");
    let restores = mode.kernel().restores();
    leftovers::remove(mode.kernel(), Family::V4).expect("it can be cleaned up twice");
    assert_eq!(mode.kernel().restores(), restores, "something was left: {}", mode.kernel().last());
}

fn name() -> ServiceName {
    ServiceName::new("default", "web")
}

/// `default/web`, as it is in the seeds.
fn web() -> ServicePlan {
    let target = |ip: [u8; 4]| Target { ip: ip.into(), port: 8080 };
    let port = PortPlan {
        name: "http".into(),
        protocol: Protocol::Tcp,
        frontends: [Frontend {
            kind: FrontendKind::ClusterIp,
            address: Some([10, 96, 0, 1].into()),
            port: 80,
        }]
        .into(),
        cluster: [target([10, 244, 1, 10]), target([10, 244, 2, 20])].into(),
        local: Box::default(),
        also_serving: Box::default(),
        here: Box::default(),
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Cluster,
        affinity: None,
        source_ranges: Box::default(),
        admits_node: false,
    };
    ServicePlan { name: name(), family: Family::V4, ports: [port].into(), health_check: None, scheduler: None }
}
