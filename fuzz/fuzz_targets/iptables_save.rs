//! The output of `iptables-save`, which contains the rules of every program on the host.
//!
//! A parsed rule is printed as text that parses to the same rule. A listing is compared with no wanted rules, as in a
//! cleanup, and with those of one Service. On a fake kernel with this content a sync restores all rules of the Service,
//! and a cleanup removes them all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_dataplane::Settings;
use portway_iptables::mode::{RENDERER, with_kernel};
use portway_iptables::render::base;
use portway_model::{
    Family, Frontend, FrontendKind, PortPlan, Protocol, ServiceName, ServicePlan, Target, TrafficPolicy,
};
use portway_xtables::desired::{Abilities, RenderContext};
use portway_xtables::fake::Fake;
use portway_xtables::listing::{Listing, Wanted};
use portway_xtables::reconcile::reconcile;
use portway_xtables::rules::Rule;
use portway_xtables::{Variant, leftovers};
use std::collections::HashMap;

fuzz_target!(|text: &str| {
    text.lines().for_each(rule);
    listing(text);
    kernel(text);
});

/// One rule, with or without its chain.
fn rule(line: &str) {
    let text = line.strip_prefix("-A ").and_then(|l| l.split_once(' ')).map_or(line, |(_, rule)| rule);
    let Some(rule) = Rule::parse(text) else { return };
    let printed = rule.to_string();
    assert_eq!(Rule::parse(&printed).as_ref(), Some(&rule), "{printed}");
}

/// A listing, compared with the wanted rules.
fn listing(text: &str) {
    let settings = Settings::default();
    let base = base(Family::V4, &settings, Abilities::default());
    let plans = HashMap::from([(name(), web())]);
    let context = RenderContext {
        renderer: RENDERER,
        family: Family::V4,
        settings: &settings,
        base: &base,
        plans: &plans,
        left_out: &HashMap::new(),
    };
    for wanted in [Wanted::default(), Wanted::of(context)] {
        let mut listing = Listing::new(&wanted);
        text.lines().for_each(|line| listing.line(line));
        let (_, drift) = reconcile(&listing.finish(), &wanted, context);
        let _ = drift.to_string();
    }
}

/// A fake kernel with these rules, if it accepts them.
fn kernel(text: &str) {
    let mut kernel = Fake::new(Family::V4, Variant::Legacy);
    if kernel.run(text).is_err() {
        return;
    }
    let mut mode = with_kernel(kernel, Family::V4);
    mode.sync(&Settings::default(), vec![(name(), Some(web()))]).expect("all rules are restored");
    let drift = mode.verify().expect("the rules can be listed");
    assert!(drift.is_empty(), "{drift}");
    let kernel = mode.program().kernel();
    leftovers::remove(kernel, Family::V4).expect("the rules can be removed");
    let restores = kernel.restores();
    leftovers::remove(kernel, Family::V4).expect("a second removal succeeds");
    assert_eq!(kernel.restores(), restores, "rules were left: {}", kernel.last());
}

fn name() -> ServiceName {
    ServiceName::new("default", "web")
}

/// The Service `default/web` with a cluster IP and two endpoints.
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
    ServicePlan { name: name(), family: Family::V4, ports: [port].into(), health_check: None, scheduler: None, proxy_protocol: None }
}
