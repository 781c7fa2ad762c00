//! Nodes without IPv6, without a Node object, and with addresses that are added later.

use crate::agent_lab::{AgentLab, NODE_PORT, PORTWAY, wait_timeout};
use crate::http::Page;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Probe, eventually};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("ipv4_works_where_ipv6_is_disabled", ipv6_disabled),
    ("a_kernel_without_ipv6_is_programmed_for_ipv4", kernel_without_ipv6),
    ("disabling_ipv6_does_not_affect_ipv4", ipv6_disabled_later),
    ("node_ports_do_not_answer_on_loopback", loopback),
    ("without_a_node_object_its_addresses_are_found", no_node_object),
    ("an_address_added_later_is_used", later_address),
];

fn disable_ipv6(lab: &AgentLab) -> std::io::Result<()> {
    lab.node().run(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))
}

/// Checks IPv4: cluster IP, node port, a change, health.
fn ipv4_works(lab: &mut AgentLab) -> Outcome {
    let node_port = SocketAddr::new(lab.node_ips()[0], NODE_PORT);
    lab.reaches("10.96.0.1:80".parse()?, &["pod1a", "pod1b"])?;
    lab.reaches(node_port, &["pod1a", "pod1b"])?;
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let healthy =
        || lab.health("/healthz").and_then(|p| if p.status == 200 { Ok(()) } else { Err(format!("{p:?}")) });
    eventually(wait_timeout(), healthy)?;
    let failures =
        lab.metrics()?.value("kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}");
    ensure(failures == 0.0, || format!("{failures} failed syncs"))
}

fn ipv6_disabled(lab: &mut AgentLab) -> Outcome {
    disable_ipv6(lab)?;
    // The Node object still has an IPv6 address. A load balancer checks the health by IPv4.
    let spec = "type: LoadBalancer\nexternalTrafficPolicy: Local\nhealthCheckNodePort: 30500";
    lab.apply("shop.yaml", &objects::service("shop", "10.96.0.60", spec));
    lab.apply("shop-slice.yaml", &objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]));
    lab.start(&[])?;
    ipv4_works(lab)?;
    let check = SocketAddr::new(lab.node_ips()[0], 30500);
    let page = eventually(wait_timeout(), || Page::get(lab.client(), check, "/"))?;
    ensure(page.status == 200, || format!("{page:?}"))
}

/// A kernel without IPv6 has no `/proc/net/if_inet6`. The test hides all of `/proc`, so sysctls cannot be read or set
/// either.
fn kernel_without_ipv6(lab: &mut AgentLab) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh", PORTWAY, "proxy"]);
    command.args(lab.flags());
    lab.start_as(command)?;
    lab.logged(&["this kernel has no IPv6, or it is off: only IPv4 is programmed"])?;
    ipv4_works(lab)?;
    let tables = lab.nft(&["list", "tables"])?;
    ensure(tables.trim() == "table ip portway", || format!("other tables than the one for IPv4:\n{tables}"))?;
    // The health check does not wait for a family that is not programmed: it would fail later.
    let page = lab.health("/livez")?.json()?;
    let families: Vec<&String> = page["status"].as_object().into_iter().flat_map(|s| s.keys()).collect();
    ensure(families == ["IPv4"], || page.to_string())
}

fn ipv6_disabled_later(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    disable_ipv6(lab)?;
    ipv4_works(lab)
}

fn loopback(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=nftables", "--nodeport-addresses=0.0.0.0/0,::/0"])?;
    lab.web_works()?;
    for ip in lab.node_ips() {
        let outcome = Probe::tcp(lab.node(), SocketAddr::new(ip, NODE_PORT)).count(8).run();
        ensure(outcome.all_answered(), || format!("{ip}: {outcome}"))?;
    }
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 1, 2, 3).into(), Ipv6Addr::LOCALHOST.into()] {
        let outcome = Probe::tcp(lab.node(), SocketAddr::new(ip, NODE_PORT)).count(4).run();
        ensure(outcome.answered() == 0, || format!("{ip}: {outcome}"))?;
    }
    Ok(())
}

fn no_node_object(lab: &mut AgentLab) -> Outcome {
    lab.delete("node1.yaml");
    lab.start(&["--proxy-mode=nftables"])?;
    lab.web_works()?;
    for ip in lab.node_ips() {
        lab.reaches(SocketAddr::new(ip, NODE_PORT), &["pod1a", "pod1b"])?;
    }
    // Node ports answer at primary addresses only, and the gateway address of the pods is not one.
    let gateway = SocketAddr::new([10, 244, 1, 1].into(), NODE_PORT);
    let outcome = Probe::tcp(lab.client(), gateway).run();
    ensure(outcome.answered() == 0, || format!("{gateway}: {outcome}"))?;
    let [healthz, livez] = [lab.health("/healthz")?, lab.health("/livez")?];
    ensure(healthz.status == 200 && livez.status == 200, || format!("{healthz:?} {livez:?}"))
}

fn later_address(lab: &mut AgentLab) -> Outcome {
    let spec = "type: LoadBalancer\nexternalTrafficPolicy: Local\nhealthCheckNodePort: 30500";
    lab.apply("shop.yaml", &objects::service("shop", "10.96.0.60", spec));
    lab.apply("shop-slice.yaml", &objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]));
    lab.start(&["--nodeport-addresses=192.168.50.0/24,172.16.0.0/16", "--nftables-sync-period=500ms"])?;
    let ask = |ip: IpAddr| Page::get(lab.client(), SocketAddr::new(ip, 30500), "/");
    eventually(wait_timeout(), || ask(lab.node_ips()[0]))?;
    let later: IpAddr = [172, 16, 0, 1].into();
    lab.add_address("172.16.0.1/24")?;
    let page = eventually(wait_timeout(), || ask(later))?;
    ensure(page.status == 200, || format!("{page:?}"))
}
