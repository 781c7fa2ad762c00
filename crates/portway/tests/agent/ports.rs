//! Ports that another process has bound.

use crate::agent_lab::{AgentLab, HEALTH_PORT, PORTWAY, patience};
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

/// Takes a port on the node.
fn occupy(world: &AgentLab, ip: impl Into<IpAddr>, port: u16) -> std::io::Result<TcpListener> {
    let address = SocketAddr::new(ip.into(), port);
    world.node().run(|| TcpListener::bind(address))
}

fn busy_health_port(world: &mut AgentLab) -> Outcome {
    let _taken = occupy(world, [0, 0, 0, 0], HEALTH_PORT)?;
    world.start(&[])?;
    world.logged(&["ERROR", "0.0.0.0:10256", "in use", "--healthz-bind-address", "healthzBindAddress"])?;
    world.web_works()?;
    world.stop()?;
    // The other server goes the same way.
    let _status = occupy(world, [127, 0, 0, 1], 10249)?;
    world.start(&["--healthz-bind-address=0.0.0.0:10300"])?;
    world.logged(&["ERROR", "127.0.0.1:10249", "in use", "--metrics-bind-address", "metricsBindAddress"])?;
    let health = SocketAddr::new(world.node_ips()[0], 10300);
    let page = eventually(patience(), || Page::get(world.client(), health, "/livez"))?;
    ensure(page.status == 200, || format!("{page:?}"))
}

fn hard_fail(world: &mut AgentLab) -> Outcome {
    let _taken = occupy(world, [0, 0, 0, 0], HEALTH_PORT)?;
    let mut command = Command::new(PORTWAY);
    command.arg("proxy").args(world.flags()).arg("--bind-address-hard-fail");
    let output = world.run(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(1), || format!("{}: {said}", output.status))?;
    let words = ["portway: ", "0.0.0.0:10256", "in use", "--healthz-bind-address"];
    // The other server may print a line of its own.
    let mut lines = said.lines();
    ensure(lines.any(|line| words.iter().all(|word| line.contains(word))), || {
        format!("not {words:?}:\n{said}")
    })
}

fn busy_health_check(world: &mut AgentLab) -> Outcome {
    let node = world.node_ips()[0];
    let taken = occupy(world, node, 30500)?;
    let spec = "type: LoadBalancer\nexternalTrafficPolicy: Local\nhealthCheckNodePort: 30500";
    world.apply("shop.yaml", &objects::service("shop", "10.96.0.60", spec));
    world.apply("shop-slice.yaml", &objects::slice("shop", "shop", &world.pod_ips("pod1a")[..1]));
    world.start(&[])?;
    world.logged(&[
        "WARN",
        "health check port 30500 of Service default/shop",
        &node.to_string(),
        "in use",
    ])?;
    world.reaches("10.96.0.60:80".parse()?, &["pod1a"])?;
    world.web_works()?;
    drop(taken);
    let check = SocketAddr::new(node, 30500);
    let page = eventually(patience(), || Page::get(world.client(), check, "/"))?;
    ensure(page.status == 200 && page.body.contains("\"localEndpoints\":1"), || format!("{page:?}"))?;
    // And it is free again when the Service no longer wants it.
    world.delete("shop.yaml");
    eventually(patience(), || occupy(world, node, 30500))?;
    Ok(())
}
