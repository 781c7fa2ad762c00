//! Invalid input is logged, counted and ignored; everything else is programmed.

use crate::agent_lab::{AgentLab, PORTWAY, wait_timeout};
use crate::{Outcome, Test, ensure, objects};
use portway_lab::eventually;
use std::net::SocketAddr;
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("values_of_services_that_cannot_be_used_are_logged_and_left_out", rejected_services),
    ("endpoints_that_cannot_be_used_are_logged_and_left_out", rejected_slice),
    ("an_object_is_programmed_without_the_value_at_fault_until_it_is_corrected", corrected),
    ("a_released_address_goes_to_the_service_that_waits", released_address),
    ("an_address_stays_with_its_service_over_a_restart_in_mode_nftables", |lab| {
        kept_address(lab, "nftables")
    }),
    ("an_address_stays_with_its_service_over_a_restart_in_mode_iptables", |lab| {
        kept_address(lab, "iptables")
    }),
    ("a_broken_manifest_keeps_its_last_good_content", broken_manifest),
    ("a_broken_manifest_at_the_start_does_not_affect_others", broken_at_the_start),
    ("an_invalid_object_of_a_manifest_is_counted_and_others_are_used", invalid_object),
    ("a_missing_manifest_directory_stops_the_start_and_later_changes_no_rules", missing_directory),
];

/// A Service with a value that cannot be used: its state, the field and the reason in the log, and the value of the
/// metric's label.
struct InvalidService {
    state: &'static str,
    name: &'static str,
    ip: &'static str,
    spec: &'static str,
    edit: (&'static str, &'static str),
    logged: [&'static str; 2],
    reason: &'static str,
}

const INVALID: &[InvalidService] = &[
    InvalidService {
        state: "rejected",
        name: "bad-address",
        ip: "10.96.0.300",
        spec: "",
        edit: ("", ""),
        logged: ["spec.clusterIP", "\"10.96.0.300\" is not an IPv4 or IPv6 address"],
        reason: "bad-address",
    },
    InvalidService {
        state: "partially programmed",
        name: "loopback",
        ip: "10.96.0.31",
        spec: "externalIPs: ['127.0.0.1']",
        edit: ("", ""),
        logged: ["spec.externalIPs[0]", "127.0.0.1 is a loopback address"],
        reason: "bad-address",
    },
    InvalidService {
        state: "partially programmed",
        name: "port-zero",
        ip: "10.96.0.32",
        spec: "",
        edit: ("port: 80", "port: 0"),
        logged: ["spec.ports[0].port", "0 is not a port"],
        reason: "bad-port",
    },
    InvalidService {
        state: "rejected",
        name: "wrong-family",
        ip: "10.96.0.33",
        spec: "clusterIPs: ['10.96.0.33']\nipFamilies: [IPv6]",
        edit: ("", ""),
        logged: ["spec.clusterIPs[0]", "10.96.0.33 is IPv4, but spec.ipFamilies[0] says IPv6"],
        reason: "wrong-family",
    },
    InvalidService {
        state: "partially programmed",
        name: "same-node-port",
        ip: "10.96.0.34",
        spec: "type: NodePort",
        edit: ("protocol: TCP", "protocol: TCP\n    nodePort: 30001"),
        logged: ["spec.ports[0].nodePort", "node port 30001/TCP is already held by Service default/web"],
        reason: "conflict",
    },
    InvalidService {
        state: "partially programmed",
        name: "same-address",
        ip: "10.96.0.1",
        spec: "",
        edit: ("", ""),
        logged: ["spec.clusterIPs[0]", "10.96.0.1 is already held by Service default/web"],
        reason: "conflict",
    },
    InvalidService {
        state: "partially programmed",
        name: "contradiction",
        ip: "10.96.0.35",
        spec: "clusterIPs: ['10.96.0.36']",
        edit: ("", ""),
        logged: ["spec.clusterIP", "contradicts spec.clusterIPs[0]"],
        reason: "contradiction",
    },
];

impl InvalidService {
    fn manifest(&self) -> String {
        objects::service(self.name, self.ip, self.spec).replace(self.edit.0, self.edit.1)
    }
}

fn rejected_services(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    for service in INVALID {
        let series =
            format!("portway_rejected_objects_total{{kind=\"Service\",reason=\"{}\"}}", service.reason);
        let before = lab.metrics()?.value(&series);
        lab.apply(&format!("{}.yaml", service.name), &service.manifest());
        let object = format!("Service default/{}:", service.name);
        lab.logged(&["WARN", service.state, &object, service.logged[0], service.logged[1]])?;
        lab.metric(&series, |n| n == before + 1.0)?;
    }
    lab.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == INVALID.len() as f64)?;
    // In one file with a new Service, and after a restart, rejected Services do not affect others.
    let all: String = INVALID.iter().map(|service| format!("{}---\n", service.manifest())).collect();
    INVALID.iter().for_each(|service| lab.delete(&format!("{}.yaml", service.name)));
    lab.apply("all.yaml", &format!("{all}{}", objects::service("late", "10.96.0.40", "")));
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &lab.pod_ips("pod1b")[..1]));
    let late: SocketAddr = "10.96.0.40:80".parse()?;
    lab.reaches(late, &["pod1b"])?;
    lab.web_works()?;
    lab.stop()?;
    lab.nft(&["delete", "table", "ip", "portway"])?;
    lab.start(&[])?;
    lab.reaches(late, &["pod1b"])?;
    lab.web_works()?;
    for service in INVALID {
        lab.logged(&[service.state, &format!("Service default/{}:", service.name), service.logged[1]])?;
    }
    Ok(())
}

fn rejected_slice(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let [v4, v6] = lab.pod_ips("pod1b");
    let mixed = objects::slice("web", "mixed", &[v4, v6]);
    lab.apply("mixed.yaml", &mixed);
    lab.logged(&[
        "WARN",
        "partially programmed",
        "EndpointSlice default/mixed:",
        "endpoints[0].addresses[0]",
        &format!("{v4} is IPv4, but addressType says IPv6"),
    ])?;
    lab.metric("portway_rejected_objects_total{kind=\"EndpointSlice\",reason=\"wrong-family\"}", |n| {
        n == 1.0
    })?;
    lab.metric("portway_rejected_objects{kind=\"EndpointSlice\"}", |n| n == 1.0)?;
    lab.web_works()?;
    // The newest version counts, without the endpoint that cannot be used.
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &[v4]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let broken = objects::slice("web", "web-v4", &[lab.pod_ips("pod1a")[0], v4])
        .replace(&v4.to_string(), "10.244.1.300");
    lab.apply("web-v4.yaml", &broken);
    let reason = "\"10.244.1.300\" is not an IPv4 or IPv6 address";
    lab.logged(&[
        "partially programmed",
        "EndpointSlice default/web-v4:",
        "endpoints[1].addresses[0]",
        reason,
    ])?;
    lab.reaches("10.96.0.1:80".parse()?, &["pod1a"])?;
    lab.delete("mixed.yaml");
    lab.delete("web-v4.yaml");
    lab.metric("portway_rejected_objects{kind=\"EndpointSlice\"}", |n| n == 0.0)?;
    Ok(())
}

fn corrected(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    let to = "10.96.0.50:80".parse()?;
    lab.apply("shop-slice.yaml", &objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]));
    lab.apply("shop.yaml", &objects::service("shop", "10.96.0.50", "sessionAffinity: Sticky"));
    let reason = "\"Sticky\" is neither None nor ClientIP; None is used";
    lab.logged(&["partially programmed", "Service default/shop:", "spec.sessionAffinity", reason])?;
    lab.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == 1.0)?;
    lab.reaches(to, &["pod1a"])?;
    lab.apply("shop.yaml", &objects::service("shop", "10.96.0.50", "sessionAffinity: ClientIP"));
    lab.reaches(to, &["pod1a"])?;
    lab.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == 0.0)?;
    Ok(())
}

fn released_address(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    lab.apply("second.yaml", &objects::service("second", "10.96.0.1", ""));
    lab.apply("second-slice.yaml", &objects::slice("second", "second", &lab.pod_ips("pod1b")[..1]));
    lab.logged(&["partially programmed", "Service default/second:", "already held by Service default/web"])?;
    lab.web_works()?;
    lab.delete("web.yaml");
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    lab.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == 0.0)?;
    Ok(())
}

/// Of Services of the same age the one that had the address keeps it, although its name sorts last.
fn kept_address(lab: &mut AgentLab, mode: &str) -> Outcome {
    let flag = format!("--proxy-mode={mode}");
    let add = |lab: &AgentLab, name: &str, pod: &str| {
        lab.apply(&format!("{name}.yaml"), &objects::service(name, "10.96.0.90", ""));
        lab.apply(&format!("{name}-slice.yaml"), &objects::slice(name, name, &lab.pod_ips(pod)[..1]));
    };
    lab.start(&[&flag])?;
    add(lab, "zebra", "pod1b");
    lab.reaches("10.96.0.90:80".parse()?, &["pod1b"])?;
    add(lab, "apple", "pod1a");
    let lost = ["partially programmed", "Service default/apple:", "already held by Service default/zebra"];
    lab.logged(&lost)?;
    lab.stop()?;
    lab.start(&[&flag])?;
    lab.logged(&lost)?;
    lab.reaches("10.96.0.90:80".parse()?, &["pod1b"])
}

fn broken_manifest(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let good = objects::slice("web", "web-v4", &lab.pod_ips("pod1a")[..1]);
    // Not YAML; a value of the wrong type; an object without a kind. The log has the line of the error.
    for (text, line, reason) in [
        (good.replace("endpoints:\n", "endpoints: [\n"), 0, ""),
        (good.replace("port: 8080", "port: many"), 9, "many"),
        (good.replace("kind: EndpointSlice\n", ""), 1, "no kind"),
    ] {
        lab.apply("web-v4.yaml", &text);
        let file = lab.path("manifests/web-v4.yaml").display().to_string();
        let position = if line > 0 { format!("{file}:{line}: ") } else { format!("{file}:") };
        lab.logged(&["WARN", "rejected", &position, reason])?;
        lab.web_works()?;
    }
    lab.apply("web-v4.yaml", &good);
    lab.reaches("10.96.0.1:80".parse()?, &["pod1a"])
}

fn broken_at_the_start(lab: &mut AgentLab) -> Outcome {
    lab.apply("broken.yaml", "kind: Service\n  name: [\n");
    lab.apply("other.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: unrelated}\n");
    lab.apply("notes.json", "{\"kind\": \n\"Service\", }");
    lab.start(&[])?;
    lab.web_works()?;
    let broken = lab.path("manifests/broken.yaml").display().to_string();
    let notes = lab.path("manifests/notes.json").display().to_string();
    lab.logged(&["rejected", &format!("{broken}:2")])?;
    lab.logged(&["rejected", &format!("{notes}:2")])?;
    let log = lab.agent()?.log().clone();
    ensure(!log.contains("other.yaml"), || "a Deployment was reported as an error".to_owned())
}

fn invalid_object(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    let series = "portway_rejected_objects_total{kind=\"Service\",reason=\"undecodable\"}";
    let shop = objects::service("shop", "10.96.0.50", "");
    let slices = objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]);
    let quoted = objects::service("quoted", "10.96.0.51", "").replace("port: 80", "port: \"80\"");
    lab.apply("shop.yaml", &format!("{quoted}---\n{shop}---\n{slices}"));
    let file = lab.path("manifests/shop.yaml").display().to_string();
    lab.logged(&["WARN", "rejected", &format!("{file}:"), "Service default/quoted: spec.ports[0].port: "])?;
    lab.metric(series, |n| n == 1.0)?;
    lab.reaches("10.96.0.50:80".parse()?, &["pod1a"])?;
    // The last version of an object stays, and the others change.
    let moved = shop.replace("10.96.0.50", "10.96.0.52").replace("port: 80", "port: \"80\"");
    let slices = objects::slice("shop", "shop", &lab.pod_ips("pod1b")[..1]);
    lab.apply("shop.yaml", &format!("{quoted}---\n{moved}---\n{slices}"));
    lab.reaches("10.96.0.50:80".parse()?, &["pod1b"])?;
    lab.metric(series, |n| n == 2.0)?;
    // A misspelled kind is reported too.
    lab.apply(
        "typo.yaml",
        &objects::service("typo", "10.96.0.53", "").replace("kind: Service", "kind: Servcie"),
    );
    let typo = lab.path("manifests/typo.yaml").display().to_string();
    lab.logged(&["WARN", &format!("{typo}:1: "), "\"Servcie\" is not known; did you mean Service?"])?;
    Ok(())
}

fn missing_directory(lab: &mut AgentLab) -> Outcome {
    let (directory, moved) = (lab.path("manifests"), lab.path("away"));
    std::fs::rename(&directory, &moved)?;
    let mut command = Command::new(PORTWAY);
    command.arg("proxy").args(lab.flags());
    lab.launch(command)?;
    lab.logged(&[&directory.display().to_string(), "create it, or correct --manifests"])?;
    let agent = lab.agent()?;
    let status = eventually(wait_timeout(), || match agent.status() {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err("the agent runs without the directory".to_owned()),
        Err(error) => Err(error.to_string()),
    })?;
    ensure(!status.success(), || format!("the agent exited with {status}"))?;
    std::fs::rename(&moved, &directory)?;
    lab.start(&[])?;
    lab.web_works()?;
    // While the directory is missing, rules stay. When it is back without a slice, the slice's endpoints are
    // removed.
    std::fs::rename(&directory, &moved)?;
    let reports =
        |lab: &mut AgentLab| lab.agent().map(|agent| agent.log().count(&directory.display().to_string()));
    let before = reports(lab)?;
    eventually(wait_timeout(), || {
        let now = reports(lab).map_err(|_| "no agent")?;
        if now > before { Ok(()) } else { Err("the missing directory is not logged") }
    })?;
    lab.web_works()?;
    std::fs::remove_file(moved.join("web-v4.yaml"))?;
    std::fs::rename(&moved, &directory)?;
    lab.reaches_no_pod("10.96.0.1:80".parse()?)
}
