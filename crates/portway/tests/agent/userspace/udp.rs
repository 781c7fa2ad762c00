//! UDP sessions: the pod that answers, and when a session ends.

use super::start;
use crate::agent_lab::AgentLab;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Conversation, Protocol};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("an_idle_session_ends", idle),
    ("one_socket_may_use_two_services", two_services),
    ("a_session_ends_when_its_tracked_flow_is_deleted", deleted_flow),
    ("sessions_follow_an_address_to_another_service", reused_address),
    ("an_endpoint_that_refuses_is_skipped", refuses),
    ("large_datagrams_arrive_whole", large),
];

const OPEN: &str = r#"portway_userspace_connections_open{namespace="default",service="NAME",port="udp",protocol="UDP",ip_family="IPv4"}"#;

/// A Service at port 53 over UDP with these endpoints.
pub(super) fn dns(lab: &AgentLab, name: &str, ip: &str, pods: &[&str]) {
    let service = objects::service(name, ip, "")
        .replace("port: 80\n    protocol: TCP", "name: udp\n    port: 53\n    protocol: UDP");
    lab.apply(&format!("{name}.yaml"), &service);
    let pods: Vec<_> = pods.iter().map(|pod| lab.pod_ips(pod)[0]).collect();
    lab.apply(&format!("{name}-slice.yaml"), &objects::slice(name, name, &pods));
}

/// Opens a UDP flow and waits until it is answered.
pub(super) fn ask(lab: &AgentLab, to: SocketAddr) -> Result<Conversation, libtest_mimic::Failed> {
    let mut conversation = Conversation::begin(lab.client(), Protocol::Udp, to, Duration::from_secs(1))
        .map_err(|e| e.to_string())?;
    portway_lab::eventually(crate::agent_lab::wait_timeout(), || {
        conversation.ask("hello").map_err(|e| e.to_string())
    })?;
    Ok(conversation)
}

fn idle(lab: &mut AgentLab) -> Outcome {
    dns(lab, "dns", "10.96.0.53", &["pod1a", "pod1b"]);
    start(lab, &["--userspace-udp-idle-timeout=5s"])?;
    lab.web_works()?;
    let mut conversation = ask(lab, "10.96.0.53:53".parse()?)?;
    let name = OPEN.replace("NAME", "dns");
    lab.metric(&name, |open| open == 1.0)?;
    let first = conversation.ask("who?").map_err(|e| e.to_string())?.server;
    for _ in 0..40 {
        // A session in use keeps its pod.
        std::thread::sleep(Duration::from_millis(150));
        let server = conversation.ask("who?").map_err(|e| e.to_string())?.server;
        ensure(server == first, || format!("{server}, not {first}"))?;
    }
    lab.metric(&name, |open| open == 0.0)?;
    conversation.ask("again").map_err(|e| e.to_string())?;
    Ok(())
}

/// Two Services with a pod each, and a client socket that sends to services.
struct TwoServices {
    socket: UdpSocket,
    one: SocketAddr,
    two: SocketAddr,
}

impl TwoServices {
    fn start(lab: &mut AgentLab) -> Result<TwoServices, libtest_mimic::Failed> {
        dns(lab, "one", "10.96.0.53", &["pod1a"]);
        dns(lab, "two", "10.96.0.54", &["pod1b"]);
        start(lab, &[])?;
        lab.web_works()?;
        let (one, two) = ("10.96.0.53:53".parse()?, "10.96.0.54:53".parse()?);
        drop((ask(lab, one)?, ask(lab, two)?));
        let socket = lab.client().run(|| UdpSocket::bind("0.0.0.0:0"))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(TwoServices { socket, one, two })
    }

    /// Sends to one of the Services; the answer must come from its address and its pod.
    fn ask(&self, to: SocketAddr) -> Outcome {
        let pod = if to == self.one { "pod1a" } else { "pod1b" };
        let mut bytes = [0; 1500];
        self.socket.send_to(b"who?\n", to)?;
        let (length, from) = self.socket.recv_from(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        ensure(from == to && text.contains(pod), || format!("sent to {to}, answered by {from}: {text}"))
    }
}

fn two_services(lab: &mut AgentLab) -> Outcome {
    let services = TwoServices::start(lab)?;
    (0..10).try_for_each(|_| services.ask(services.one).and_then(|()| services.ask(services.two)))
}

/// One client port sends to one Service and then, after all tracked flows were deleted, to another.
fn deleted_flow(lab: &mut AgentLab) -> Outcome {
    let services = TwoServices::start(lab)?;
    for to in [services.one, services.two, services.one] {
        services.ask(to)?;
        lab.tool("conntrack", &["-F"], "")?;
        // Longer than the interval at which the relay looks up the flow of a session.
        std::thread::sleep(Duration::from_millis(2100));
    }
    Ok(())
}

fn reused_address(lab: &mut AgentLab) -> Outcome {
    dns(lab, "one", "10.96.0.53", &["pod1a"]);
    start(lab, &[])?;
    lab.web_works()?;
    let mut conversation = ask(lab, "10.96.0.53:53".parse()?)?;
    let server = |c: &mut Conversation| c.ask("who?").map(|reply| reply.server).map_err(|e| e.to_string());
    let now = server(&mut conversation)?;
    ensure(now == "pod1a", || now.clone())?;
    lab.delete("one.yaml");
    dns(lab, "two", "10.96.0.53", &["pod1b"]);
    let moved = || match server(&mut conversation) {
        Ok(pod) if pod == "pod1b" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    Ok(portway_lab::eventually(crate::agent_lab::wait_timeout(), moved)?)
}

fn refuses(lab: &mut AgentLab) -> Outcome {
    dns(lab, "dns", "10.96.0.53", &["pod1a", "pod1b"]);
    start(lab, &[])?;
    lab.web_works()?;
    drop(ask(lab, "10.96.0.53:53".parse()?)?);
    lab.stop_servers("pod1a");
    for _ in 0..6 {
        let conversation = ask(lab, "10.96.0.53:53".parse()?)?;
        drop(conversation);
    }
    Ok(())
}

fn large(lab: &mut AgentLab) -> Outcome {
    let pod = lab.pod_ips("pod1b")[0];
    let service = objects::service("big", "10.96.0.55", "")
        .replace("port: 80\n    protocol: TCP", "name: udp\n    port: 53\n    protocol: UDP");
    lab.apply("big.yaml", &service);
    let slice =
        objects::slice("big", "big", &[pod]).replace("name: udp, port: 8080", "name: udp, port: 9053");
    lab.apply("big-slice.yaml", &slice);
    start(lab, &[])?;
    lab.web_works()?;
    let server = lab.pod("pod1b").run(|| UdpSocket::bind(SocketAddr::new(pod, 9053)))?;
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = vec![0; 65_536];
        for _ in 0..3 {
            let (length, from) = server.recv_from(&mut bytes)?;
            server.send_to(&bytes[..length], from)?;
        }
        Ok(())
    });
    let socket = lab.client().run(|| UdpSocket::bind("0.0.0.0:0"))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut answer = vec![0; 65_536];
    for size in [0, 1, 60_000] {
        let question: Vec<u8> = (0..size).map(|n| n as u8).collect();
        socket.send_to(&question, "10.96.0.55:53")?;
        let (length, _) = socket.recv_from(&mut answer)?;
        ensure(answer[..length] == question, || {
            format!("{length} of {size} bytes came back, or other bytes")
        })?;
    }
    echo.join().map_err(|_| "the pod panicked")??;
    Ok(())
}
