//! Ports that another process has bound.

use crate::agent_lab::{AgentLab, HEALTH_PORT, PORTWAY, wait_timeout};
use crate::http::Page;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::eventually;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    ("a_busy_health_port_is_logged_and_services_work", busy_health_port),
    ("a_busy_health_port_ends_the_agent_with_bind_address_hard_fail", hard_fail),
    ("a_busy_health_check_port_is_logged_and_retried", busy_health_check),
];

/// Binds a port on the node.
fn occupy(lab: &AgentLab, ip: impl Into<IpAddr>, port: u16) -> std::io::Result<TcpListener> {
    let address = SocketAddr::new(ip.into(), port);
    lab.node().run(|| TcpListener::bind(address))
}

fn busy_health_port(lab: &mut AgentLab) -> Outcome {
    let _taken = occupy(lab, [0, 0, 0, 0], HEALTH_PORT)?;
    lab.start(&[])?;
    lab.logged(&["ERROR", "0.0.0.0:10256", "in use", "--healthz-bind-address", "healthzBindAddress"])?;
    lab.web_works()?;
    lab.stop()?;
    // The same for the status server.
    let _status = occupy(lab, [127, 0, 0, 1], 10249)?;
    lab.start(&["--healthz-bind-address=0.0.0.0:10300"])?;
    lab.logged(&["ERROR", "127.0.0.1:10249", "in use", "--metrics-bind-address", "metricsBindAddress"])?;
    let health = SocketAddr::new(lab.node_ips()[0], 10300);
    let page = eventually(wait_timeout(), || Page::get(lab.client(), health, "/livez"))?;
    ensure(page.status == 200, || format!("{page:?}"))
}

fn hard_fail(lab: &mut AgentLab) -> Outcome {
    let _taken = occupy(lab, [0, 0, 0, 0], HEALTH_PORT)?;
    let mut command = Command::new(PORTWAY);
    command.arg("proxy").args(lab.flags()).arg("--bind-address-hard-fail");
    let output = lab.run(command)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(1), || format!("{}: {stderr}", output.status))?;
    let words = ["portway: ", "0.0.0.0:10256", "in use", "--healthz-bind-address"];
    // The status server may log a line as well.
    let mut lines = stderr.lines();
    ensure(lines.any(|line| words.iter().all(|word| line.contains(word))), || {
        format!("no line with {words:?}:\n{stderr}")
    })
}

fn busy_health_check(lab: &mut AgentLab) -> Outcome {
    let node = lab.node_ips()[0];
    let taken = occupy(lab, node, 30500)?;
    let spec = "type: LoadBalancer\nexternalTrafficPolicy: Local\nhealthCheckNodePort: 30500";
    lab.apply("shop.yaml", &objects::service("shop", "10.96.0.60", spec));
    lab.apply("shop-slice.yaml", &objects::slice("shop", "shop", &lab.pod_ips("pod1a")[..1]));
    lab.start(&["--proxy-mode=nftables"])?;
    lab.logged(&["WARN", "health check port 30500 of Service default/shop", &node.to_string(), "in use"])?;
    lab.reaches("10.96.0.60:80".parse()?, &["pod1a"])?;
    lab.web_works()?;
    drop(taken);
    let check = SocketAddr::new(node, 30500);
    let page = eventually(wait_timeout(), || Page::get(lab.client(), check, "/"))?;
    ensure(page.status == 200 && page.body.contains("\"localEndpoints\":1"), || format!("{page:?}"))?;
    // The port is released when the Service is deleted.
    lab.delete("shop.yaml");
    eventually(wait_timeout(), || occupy(lab, node, 30500))?;
    Ok(())
}
