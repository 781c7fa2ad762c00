//! Invalid input is logged, counted and ignored; everything else is programmed.

use crate::agent_lab::{AgentLab, patience};
use crate::{Outcome, Test, ensure, objects};
use portway_lab::eventually;
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("rejected_services_are_logged_and_the_others_programmed", bad_services),
    ("a_rejected_slice_is_logged_and_other_slices_serve", bad_slice),
    ("a_corrected_object_is_programmed", mended),
    ("a_released_address_goes_to_the_service_that_waits", inherited),
    ("a_broken_manifest_keeps_its_last_good_content", broken_file),
    ("a_broken_manifest_at_the_start_does_not_affect_others", broken_from_the_start),
    ("a_missing_manifest_directory_is_logged_and_awaited", missing_folder),
];

/// A Service that cannot be programmed, and how that is told: field, reason, and the word it is counted by.
struct Bad {
    name: &'static str,
    ip: &'static str,
    spec: &'static str,
    edit: (&'static str, &'static str),
    told: [&'static str; 2],
    class: &'static str,
}

const BAD: &[Bad] = &[
    Bad {
        name: "bad-address",
        ip: "10.96.0.300",
        spec: "",
        edit: ("", ""),
        told: ["spec.clusterIP", "\"10.96.0.300\" is not an IPv4 or IPv6 address"],
        class: "bad-address",
    },
    Bad {
        name: "loopback",
        ip: "10.96.0.31",
        spec: "externalIPs: ['127.0.0.1']",
        edit: ("", ""),
        told: ["spec.externalIPs[0]", "127.0.0.1 is a loopback address"],
        class: "bad-address",
    },
    Bad {
        name: "port-zero",
        ip: "10.96.0.32",
        spec: "",
        edit: ("port: 80", "port: 0"),
        told: ["spec.ports[0].port", "0 is not a port"],
        class: "bad-port",
    },
    Bad {
        name: "wrong-family",
        ip: "10.96.0.33",
        spec: "clusterIPs: ['10.96.0.33']\nipFamilies: [IPv6]",
        edit: ("", ""),
        told: ["spec.clusterIPs[0]", "10.96.0.33 is IPv4, but spec.ipFamilies[0] says IPv6"],
        class: "wrong-family",
    },
    Bad {
        name: "same-node-port",
        ip: "10.96.0.34",
        spec: "type: NodePort",
        edit: ("protocol: TCP", "protocol: TCP\n    nodePort: 30001"),
        told: ["spec.ports[0].nodePort", "node port 30001/TCP is already held by Service default/web"],
        class: "conflict",
    },
    Bad {
        name: "same-address",
        ip: "10.96.0.1",
        spec: "",
        edit: ("", ""),
        told: ["spec.clusterIPs[0]", "10.96.0.1 is already held by Service default/web"],
        class: "conflict",
    },
    Bad {
        name: "contradiction",
        ip: "10.96.0.35",
        spec: "clusterIPs: ['10.96.0.36']",
        edit: ("", ""),
        told: ["spec.clusterIP", "contradicts spec.clusterIPs[0]"],
        class: "contradiction",
    },
];

impl Bad {
    fn manifest(&self) -> String {
        objects::service(self.name, self.ip, self.spec).replace(self.edit.0, self.edit.1)
    }
}

fn bad_services(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    for bad in BAD {
        let series = format!("portway_rejected_objects_total{{kind=\"Service\",reason=\"{}\"}}", bad.class);
        let before = world.metrics()?.value(&series);
        world.apply(&format!("{}.yaml", bad.name), &bad.manifest());
        let object = format!("Service default/{}:", bad.name);
        world.logged(&["WARN", "rejected", &object, bad.told[0], bad.told[1]])?;
        world.metric(&series, |n| n == before + 1.0)?;
    }
    world.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == BAD.len() as f64)?;
    // In one file with a new Service, and after a restart, they do not affect other Services.
    let all: String = BAD.iter().map(|bad| format!("{}---\n", bad.manifest())).collect();
    BAD.iter().for_each(|bad| world.delete(&format!("{}.yaml", bad.name)));
    world.apply("all.yaml", &format!("{all}{}", objects::service("late", "10.96.0.40", "")));
    world.apply("late-slice.yaml", &objects::slice("late", "late", &world.pod_ips("pod1b")[..1]));
    let late: SocketAddr = "10.96.0.40:80".parse()?;
    world.reaches(late, &["pod1b"])?;
    world.web_works()?;
    world.stop()?;
    world.nft(&["delete", "table", "ip", "portway"])?;
    world.start(&[])?;
    world.reaches(late, &["pod1b"])?;
    world.web_works()?;
    for bad in BAD {
        world.logged(&["rejected", &format!("Service default/{}:", bad.name), bad.told[1]])?;
    }
    Ok(())
}

fn bad_slice(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let [v4, v6] = world.pod_ips("pod1b");
    let mixed = objects::slice("web", "mixed", &[v4, v6]);
    world.apply("mixed.yaml", &mixed);
    world.logged(&[
        "WARN",
        "rejected",
        "EndpointSlice default/mixed:",
        "endpoints[0].addresses[0]",
        &format!("{v4} is IPv4, but addressType says IPv6"),
    ])?;
    world.metric("portway_rejected_objects_total{kind=\"EndpointSlice\",reason=\"wrong-family\"}", |n| {
        n == 1.0
    })?;
    world.metric("portway_rejected_objects{kind=\"EndpointSlice\"}", |n| n == 1.0)?;
    world.web_works()?;
    // A good slice that turns bad goes on as it was.
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &[v4]));
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let broken =
        objects::slice("web", "web-v4", &world.pod_ips("pod1a")[..1]).replace("port: 8080", "port: 80800");
    world.apply("web-v4.yaml", &broken);
    world.logged(&["rejected", "EndpointSlice default/web-v4:", "ports[0].port", "80800 is not a port"])?;
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    world.delete("mixed.yaml");
    world.delete("web-v4.yaml");
    world.metric("portway_rejected_objects{kind=\"EndpointSlice\"}", |n| n == 0.0)?;
    Ok(())
}

fn mended(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    let to = "10.96.0.50:80".parse()?;
    world.apply("shop-slice.yaml", &objects::slice("shop", "shop", &world.pod_ips("pod1a")[..1]));
    world.apply("shop.yaml", &objects::service("shop", "10.96.0.50", "sessionAffinity: Sticky"));
    world.logged(&["rejected", "Service default/shop:", "spec.sessionAffinity", "\"Sticky\""])?;
    world.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == 1.0)?;
    world.reaches_nobody(to)?;
    world.apply("shop.yaml", &objects::service("shop", "10.96.0.50", "sessionAffinity: ClientIP"));
    world.reaches(to, &["pod1a"])?;
    world.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == 0.0)?;
    Ok(())
}

fn inherited(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    world.apply("heir.yaml", &objects::service("heir", "10.96.0.1", ""));
    world.apply("heir-slice.yaml", &objects::slice("heir", "heir", &world.pod_ips("pod1b")[..1]));
    world.logged(&["rejected", "Service default/heir:", "already held by Service default/web"])?;
    world.web_works()?;
    world.delete("web.yaml");
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    world.metric("portway_rejected_objects{kind=\"Service\"}", |n| n == 0.0)?;
    Ok(())
}

fn broken_file(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let good = objects::slice("web", "web-v4", &world.pod_ips("pod1a")[..1]);
    // Not YAML; YAML of the wrong shape; an object without a kind. The line is where the mistake is.
    for (text, line, reason) in [
        (good.replace("endpoints:\n", "endpoints: [\n"), 0, ""),
        (good.replace("port: 8080", "port: many"), 9, "many"),
        (good.replace("kind: EndpointSlice\n", ""), 1, "no kind"),
    ] {
        world.apply("web-v4.yaml", &text);
        let file = world.path("manifests/web-v4.yaml").display().to_string();
        let place = if line > 0 { format!("{file}:{line}: ") } else { format!("{file}:") };
        world.logged(&["WARN", "rejected", &place, reason])?;
        world.web_works()?;
    }
    world.apply("web-v4.yaml", &good);
    world.reaches("10.96.0.1:80".parse()?, &["pod1a"])
}

fn broken_from_the_start(world: &mut AgentLab) -> Outcome {
    world.apply("broken.yaml", "kind: Service\n  name: [\n");
    world.apply(
        "other.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: none-of-our-business}\n",
    );
    world.apply("notes.json", "{\"kind\": \n\"Service\", }");
    world.start(&[])?;
    world.web_works()?;
    let broken = world.path("manifests/broken.yaml").display().to_string();
    let notes = world.path("manifests/notes.json").display().to_string();
    world.logged(&["rejected", &format!("{broken}:2")])?;
    world.logged(&["rejected", &format!("{notes}:2")])?;
    let log = world.agent()?.log().clone();
    ensure(!log.contains("other.yaml"), || "a Deployment was complained about".to_owned())
}

fn missing_folder(world: &mut AgentLab) -> Outcome {
    let (here, away) = (world.path("manifests"), world.path("away"));
    std::fs::rename(&here, &away)?;
    world.start(&[])?;
    world.logged(&["WARN", &here.display().to_string()])?;
    let rules = world.nft(&["list", "ruleset"])?;
    ensure(rules.is_empty(), || format!("something was programmed out of nothing:\n{rules}"))?;
    std::fs::rename(&away, &here)?;
    world.web_works()?;
    // Gone again, nothing changes; back with less in it, that does.
    std::fs::rename(&here, &away)?;
    let said =
        |world: &mut AgentLab| world.agent().map(|agent| agent.log().count(&here.display().to_string()));
    let before = said(world)?;
    eventually(patience(), || {
        let now = said(world).map_err(|_| "no agent")?;
        if now > before { Ok(()) } else { Err("the missing folder is not said") }
    })?;
    world.web_works()?;
    std::fs::remove_file(away.join("web-v4.yaml"))?;
    std::fs::rename(&away, &here)?;
    world.reaches_nobody("10.96.0.1:80".parse()?)
}
