//! Rules and sets in a real kernel, with both variants of iptables: the listing equals the written objects.
//!
//! Virtual servers need a kernel with ip_vs and are tested in the battery.

use portway_dataplane::{Driver, LocalTraffic, NodePortAddresses, Settings};
use portway_ipvs::mode::RENDERER;
use portway_ipvs::sets::Set;
use portway_lab::Namespace;
use portway_model::Family;
use portway_netlink::ipset::{Ipset, Member};
use portway_testkit::harness::{self, Failed, Test};
use portway_xtables::{Engine, Tools, Variant, leftovers};
use std::net::IpAddr;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for variant in Variant::ALL {
        for family in Family::ALL {
            for (name, settings) in settings() {
                let name = format!("{variant}::{family}::{name}");
                let about = name.clone();
                tests.push(Test::new(name, move || rules_are_read_back(&about, variant, family, &settings)));
            }
        }
    }
    tests.push(Test::new("sets_are_listed_as_they_were_made", sets_are_listed_as_they_were_made));
    harness::run_in(portway_lab::enter, tests)
}

/// Settings that make a difference to the rules.
fn settings() -> Vec<(&'static str, Settings)> {
    let nets = |list: &[&str]| list.iter().map(|net| net.parse().expect("a network")).collect::<Vec<_>>();
    let base = Settings {
        service_cidrs: nets(&["10.96.0.0/12", "fd96::/112"]),
        local: LocalTraffic::Cidrs(nets(&["10.244.0.0/16", "fd10:244::/32"])),
        ..Settings::default()
    };
    let within = NodePortAddresses::Within(nets(&["192.168.0.0/16", "fd50::/64"]));
    vec![
        ("pods_by_address", base.clone()),
        ("pods_by_interface", Settings { local: LocalTraffic::Interface("cni0".into()), ..base.clone() }),
        ("pods_by_prefix", Settings { local: LocalTraffic::InterfacePrefix("veth".into()), ..base.clone() }),
        ("pods_unknown", Settings { local: LocalTraffic::Unknown, ..base.clone() }),
        ("masquerade_all", Settings { masquerade_all: true, masquerade_mark: 1 << 3, ..base.clone() }),
        ("node_ports_within", Settings { node_ports: within, drop_invalid: false, ..base }),
    ]
}

fn rules_are_read_back(
    name: &str,
    variant: Variant,
    family: Family,
    settings: &Settings,
) -> Result<(), Failed> {
    let namespace = Namespace::new(&name.replace("::", "-"))?;
    namespace.run(|| -> Result<(), Failed> {
        let mut sets = Ipset::open()?.ok_or("a kernel with sets")?;
        for set in Set::ALL {
            sets.create(&set.describe(family))?;
        }
        let tools = Tools::of(variant).ok_or("no such iptables")?;
        let mut rules = Driver::new(Engine::open(&tools, family, RENDERER)?);
        let report = rules.sync(settings, Vec::new())?;
        check(report.full && report.added > 40, || format!("{report:?}"))?;
        let drift = rules.verify()?;
        check(drift.is_empty(), || drift.to_string())?;
        rules.mark_stale();
        let report = rules.sync(settings, Vec::new())?;
        check(report.full && report.added + report.removed == 0, || format!("{report:?}"))?;
        leftovers::remove(rules.program().kernel(), family)?;
        // No rule refers to the sets any more.
        for set in Set::ALL {
            check(sets.destroy(set.name(family))?, || format!("{set:?} did not exist"))?;
        }
        Ok(())
    })
}

fn sets_are_listed_as_they_were_made() -> Result<(), Failed> {
    let namespace = Namespace::new("sets")?;
    namespace.run(|| -> Result<(), Failed> {
        let mut sets = Ipset::open()?.ok_or("a kernel with sets")?;
        for family in Family::ALL {
            let ip: IpAddr = if family == Family::V4 { "10.96.0.1".parse()? } else { "fd96::1".parse()? };
            let at = Member { ip: Some(ip), port: Some(80), protocol: Some(6), ..Member::default() };
            let mark = |set: Set| set.has_marks().then_some((7, u32::MAX));
            for set in Set::ALL {
                use portway_netlink::ipset::SetKind::{Ip, IpPort, IpPortIp, IpPortNet, Port};
                sets.create(&set.describe(family))?;
                let member = match set.kind() {
                    Ip => Member { ip: Some(ip), ..Member::default() },
                    IpPort => Member { mark: mark(set), ..at },
                    IpPortIp => Member { ip2: Some(ip), ..at },
                    IpPortNet => Member { ip2: Some(ip), cidr2: Some(16), ..at },
                    Port => Member { port: Some(80), ..Member::default() },
                };
                sets.add(set.name(family), &[member])?;
            }
        }
        let infos = sets.names()?;
        for info in &infos {
            let (set, family) = Set::parse(&info.name).ok_or("a set of this mode")?;
            check(info.fits(&set.describe(family)) && info.elements == 1, || format!("{info:?}"))?;
        }
        check(infos.len() == 2 * Set::ALL.len(), || format!("{} sets", infos.len()))
    })
}

fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(message().into()) }
}
