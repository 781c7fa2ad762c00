//! The PROXY protocol: a pod of a Service with the annotation receives the client's address.

use super::start;
use crate::agent_lab::{AgentLab, WEB, wait_timeout};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::Namespace;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("a_pod_receives_the_clients_address", received),
    ("an_unknown_version_is_reported_and_no_header_is_sent", unknown),
    ("other_modes_report_that_they_send_no_header", other_mode),
];

const PORT: u16 = 9000;

/// Accepts one connection in a pod; the thread returns the bytes that it received.
fn listen(pod: &Namespace, ip: IpAddr) -> Result<JoinHandle<std::io::Result<Vec<u8>>>, Failed> {
    let listener = pod.run(|| TcpListener::bind(SocketAddr::new(ip, PORT)))?;
    Ok(std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        stream.write_all(b"bye")?;
        Ok(bytes)
    }))
}

/// Applies a Service with the annotation.
fn annotated(lab: &AgentLab, version: &str) {
    let ips = "clusterIPs: ['10.96.0.70', 'fd96::70']";
    let service = objects::service("proxied", "10.96.0.70", ips);
    let annotation = format!("metadata:\n  annotations: {{portway.dev/proxy-protocol: {version}}}\n");
    lab.apply("proxied.yaml", &service.replace("metadata:\n", &annotation));
    for (i, family) in ["v4", "v6"].into_iter().enumerate() {
        let slice = objects::slice("proxied", &format!("proxied-{family}"), &[lab.pod_ips("pod1b")[i]]);
        lab.apply(&format!("proxied-{family}.yaml"), &slice.replace("port: 8080", &format!("port: {PORT}")));
    }
}

/// Sends `hello` and shuts down its direction; returns the client's address and the pod's answer.
fn greet(from: &Namespace, to: SocketAddr) -> Result<(SocketAddr, String), Failed> {
    let answered = from.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"hello")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>((stream.local_addr()?, answer))
    });
    Ok(answered?)
}

/// Parses a header as section 2.2 of the specification defines it.
fn parse(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let rest = bytes.strip_prefix(b"\r\n\r\n\0\r\nQUIT\n\x21")?;
    let (family, rest) = rest.split_first()?;
    let (length, rest) = rest.split_at_checked(2)?;
    let (addresses, rest) = rest.split_at_checked(u16::from_be_bytes(length.try_into().ok()?).into())?;
    let size = match family {
        0x11 => 4,
        0x21 => 16,
        _ => return None,
    };
    let ip = |at: usize| -> Option<IpAddr> {
        let octets = addresses.get(at..at + size)?;
        match size {
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?)),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?)),
        }
    };
    let port = |at: usize| Some(u16::from_be_bytes(addresses.get(at..at + 2)?.try_into().ok()?));
    let source = SocketAddr::new(ip(0)?, port(2 * size)?);
    Some((source, SocketAddr::new(ip(size)?, port(2 * size + 2)?), rest))
}

fn received(lab: &mut AgentLab) -> Outcome {
    annotated(lab, "v2");
    start(lab, &[])?;
    lab.web_works()?;
    for (i, ip) in ["10.96.0.70", "fd96::70"].into_iter().enumerate() {
        let to = SocketAddr::new(ip.parse()?, 80);
        for from in [lab.client(), lab.pod("pod1a")] {
            let pod = listen(lab.pod("pod1b"), lab.pod_ips("pod1b")[i])?;
            let (client, answer) = greet(from, to)?;
            ensure(answer == "bye", || format!("{to}: answered {answer:?}"))?;
            let bytes = pod.join().map_err(|_| "the pod panicked")??;
            let (source, destination, rest) = parse(&bytes).ok_or_else(|| format!("no header: {bytes:?}"))?;
            ensure((source, destination) == (client, to), || {
                format!("{source} to {destination}, not {client} to {to}")
            })?;
            ensure(rest == b"hello", || format!("the bytes after the header: {rest:?}"))?;
        }
    }
    // Without an agent no header would be sent, and the pod would misread the bytes: the connection is rejected.
    lab.stop()?;
    let _pod = listen(lab.pod("pod1b"), lab.pod_ips("pod1b")[0])?;
    ensure(greet(lab.client(), "10.96.0.70:80".parse()?).is_err(), || {
        "the connection reached the pod".to_owned()
    })?;
    lab.reaches(SocketAddr::new(WEB[0], 80), &["pod1a", "pod1b"])
}

fn other_mode(lab: &mut AgentLab) -> Outcome {
    annotated(lab, "v2");
    lab.start(&["--proxy-mode=nftables"])?;
    lab.logged(&[
        "WARN",
        "default/proxied",
        "portway.dev/proxy-protocol",
        "mode nftables sends no PROXY protocol header",
    ])?;
    lab.web_works()
}

fn unknown(lab: &mut AgentLab) -> Outcome {
    annotated(lab, "v1");
    start(lab, &[])?;
    lab.logged(&["WARN", "default/proxied", "portway.dev/proxy-protocol", "\"v1\"", "only \"v2\""])?;
    lab.web_works()?;
    let pod = listen(lab.pod("pod1b"), lab.pod_ips("pod1b")[0])?;
    greet(lab.client(), "10.96.0.70:80".parse()?)?;
    portway_lab::eventually(wait_timeout(), || {
        if pod.is_finished() { Ok(()) } else { Err("the connection has not ended") }
    })?;
    let bytes = pod.join().map_err(|_| "the pod panicked")??;
    ensure(bytes == b"hello", || format!("{bytes:?}"))
}
