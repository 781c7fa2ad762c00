//! Tests of `service`.

use super::super::free_port::free_port;
use super::*;
use portway_serve::{HealthState, Reply, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn checks<const N: usize>(checks: [(&str, u16, usize); N]) -> BTreeMap<ServiceName, HealthCheck> {
    let check = |(name, port, count)| (name, port, [(Family::V4, count)].into());
    checks_by_family(checks.map(check))
}

fn checks_by_family<const N: usize>(
    checks: [(&str, u16, BTreeMap<Family, usize>); N],
) -> BTreeMap<ServiceName, HealthCheck> {
    let check =
        |(name, port, local_endpoints)| (ServiceName::new("ns", name), HealthCheck { port, local_endpoints });
    checks.into_iter().map(check).collect()
}

fn ports() -> (ServicePorts, Health) {
    let health = Health::new(HealthState::new(Duration::from_secs(60)));
    (ServicePorts::new(health.clone(), tokio::runtime::Handle::current()), health)
}

async fn ask(port: u16, path: &str) -> Option<Reply> {
    get(SocketAddr::new(LOCALHOST, port), path).await.ok()
}

#[tokio::test]
async fn every_path_returns_the_number_of_local_endpoints() {
    let ((mut ports, _), port, now) = (ports(), free_port(), Instant::now());
    assert!(ports.sync(now, &[LOCALHOST], &checks([("web", port, 2)])).await.is_empty());
    for path in ["/", "/healthz", "/any/path?at=all"] {
        let reply = ask(port, path).await.expect("an answer");
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("x-load-balancing-endpoint-weight"), Some("2"));
        let body =
            r#"{"service":{"namespace":"ns","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}"#;
        assert_eq!(reply.body, body);
    }
    ports.sync(now, &[LOCALHOST], &checks([("web", port, 0)])).await;
    let reply = ask(port, "/").await.expect("an answer");
    assert_eq!((reply.status, reply.header("x-load-balancing-endpoint-weight")), (503, Some("0")));
}

#[tokio::test]
async fn each_family_has_its_own_count_and_its_own_listener() {
    let ((mut ports, _), port, now) = (ports(), free_port(), Instant::now());
    let addresses = [LOCALHOST, IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let answers = async || {
        let mut answers = Vec::new();
        for ip in addresses {
            let reply = get(SocketAddr::new(ip, port), "/").await.ok();
            let weight = |reply: Reply| reply.header("x-load-balancing-endpoint-weight").map(str::to_owned);
            answers.push(reply.map(|reply| (reply.status, weight(reply))));
        }
        answers
    };
    let count = |status, count: &str| Some((status, Some(count.to_owned())));
    for (families, expected) in [
        (BTreeMap::from([(Family::V4, 2), (Family::V6, 0)]), [count(200, "2"), count(503, "0")]),
        (BTreeMap::from([(Family::V4, 2)]), [count(200, "2"), None]),
        (BTreeMap::from([(Family::V6, 3)]), [None, count(200, "3")]),
        (BTreeMap::from([(Family::V4, 0), (Family::V6, 3)]), [count(503, "0"), count(200, "3")]),
    ] {
        let checks = checks_by_family([("web", port, families.clone())]);
        assert!(ports.sync(now, &addresses, &checks).await.is_empty());
        assert_eq!(answers().await, expected, "{families:?}");
    }
}

#[tokio::test]
async fn a_proxy_that_does_not_keep_up_answers_503() {
    let ((mut ports, health), port) = (ports(), free_port());
    ports.sync(Instant::now(), &[LOCALHOST], &checks([("web", port, 2)])).await;
    health.lock().set_timeout(Duration::ZERO);
    health.lock().queued(Timestamp::now(), Family::V4);
    let reply = ask(port, "/").await.expect("an answer");
    assert_eq!(reply.status, 503);
    assert!(reply.body.ends_with(r#""localEndpoints":2,"serviceProxyHealthy":false}"#), "{}", reply.body);
}

#[tokio::test]
async fn ports_follow_the_services() {
    let ((mut ports, _), first, second, now) = (ports(), free_port(), free_port(), Instant::now());
    assert!(ports.sync(now, &[LOCALHOST], &checks([("a", first, 1), ("b", second, 1)])).await.is_empty());
    // Service b is deleted and its port goes to c in the same sync; the port of a is closed.
    assert!(ports.sync(now, &[LOCALHOST], &checks([("c", second, 1)])).await.is_empty());
    assert!(ask(first, "/").await.is_none(), "a's port is still open");
    assert!(ask(second, "/").await.expect("an answer").body.contains(r#""name":"c""#));
    ports.close().await;
    assert!(ask(second, "/").await.is_none(), "a port is still open after close");
}

#[tokio::test]
async fn open_connections_end_when_the_port_is_closed() {
    let ((mut ports, _), port, now) = (ports(), free_port(), Instant::now());
    ports.sync(now, &[LOCALHOST], &checks([("a", port, 1)])).await;
    let mut stream = TcpStream::connect((LOCALHOST, port)).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    let mut first = [0; 1];
    stream.read_exact(&mut first).await.expect("an answer begins");
    ports.sync(now, &[LOCALHOST], &checks([])).await;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("the connection ends");
}

#[tokio::test]
async fn a_port_in_use_is_reported_and_retried() {
    let ((mut ports, _), now) = (ports(), Instant::now());
    let occupant = std::net::TcpListener::bind((LOCALHOST, 0)).expect("a port");
    let port = occupant.local_addr().expect("an address").port();
    let wanted = checks([("web", port, 1)]);

    let errors = ports.sync(now, &[LOCALHOST], &wanted).await;
    assert_eq!(errors.len(), 1);
    let text = errors[0].to_string();
    let begin = format!("health check port {port} of Service ns/web cannot be opened: 127.0.0.1:{port}: ");
    assert!(text.starts_with(&begin) && text.ends_with("; next try in 1s"), "{text}");

    let after = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(ports.next_retry(), Some(after(1)));
    assert!(ports.sync(now, &[LOCALHOST], &wanted).await.is_empty(), "retried before the pause was over");
    assert_eq!(ports.retry(after(1)).len(), 1);
    assert_eq!(ports.next_retry(), Some(after(3)), "the pause should have doubled");

    drop(occupant);
    assert!(ports.retry(after(3)).is_empty());
    assert_eq!(ports.next_retry(), None);
    assert_eq!(ask(port, "/").await.expect("an answer").status, 200);
}

#[tokio::test]
async fn other_addresses_are_served_while_one_cannot_be_bound() {
    let ((mut ports, _), port, now) = (ports(), free_port(), Instant::now());
    // An address that the Node object still has, and the node does not.
    let lost: IpAddr = [192, 0, 2, 1].into();
    let wanted = checks([("web", port, 1)]);
    let errors = ports.sync(now, &[LOCALHOST, lost], &wanted).await;
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains(&format!("192.0.2.1:{port}: ")), "{}", errors[0]);
    assert_eq!(ask(port, "/").await.expect("an answer").status, 200);
    assert_eq!(ports.retry(now + FIRST_PAUSE).len(), 1, "the address is not retried");
    // Without that address there is nothing to retry, and open connections stay open.
    let mut stream = TcpStream::connect((LOCALHOST, port)).await.expect("a connection");
    assert!(ports.sync(now, &[LOCALHOST], &wanted).await.is_empty());
    assert_eq!(ports.next_retry(), None);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    stream.read_exact(&mut [0; 1]).await.expect("an answer on the connection from before");
}

#[tokio::test]
async fn retry_pauses_grow_to_at_most_a_minute() {
    let ((mut ports, _), mut now) = (ports(), Instant::now());
    let occupant = std::net::TcpListener::bind((LOCALHOST, 0)).expect("a port");
    let port = occupant.local_addr().expect("an address").port();
    ports.sync(now, &[LOCALHOST], &checks([("web", port, 1)])).await;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        now = ports.next_retry().expect("a next try");
        pauses.push(ports.retry(now)[0].retry_in.expect("a pause").as_secs());
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
    // Without the Service the port is not retried any more.
    ports.sync(now, &[LOCALHOST], &checks([])).await;
    assert_eq!(ports.next_retry(), None);
}

#[tokio::test]
async fn a_port_can_move_to_other_addresses() {
    let ((mut ports, _), port, now) = (ports(), free_port(), Instant::now());
    let wanted = checks([("web", port, 1)]);
    assert!(ports.sync(now, &[LOCALHOST], &wanted).await.is_empty());
    let unspecified = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    assert!(ports.sync(now, &unspecified, &wanted).await.is_empty());
    assert!(ask(port, "/").await.is_some());
}

#[tokio::test]
async fn a_port_claimed_by_two_services_is_reported_once() {
    let ((mut ports, _), port, now) = (ports(), free_port(), Instant::now());
    let wanted = checks([("a", port, 1), ("b", port, 1)]);
    let errors = ports.sync(now, &[LOCALHOST], &wanted).await;
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [format!(
            "health check port {port} of Service ns/b cannot be opened: Service ns/a has the same port"
        )]
    );
    assert!(ports.sync(now, &[LOCALHOST], &wanted).await.is_empty());
    assert!(ports.sync(now, &[LOCALHOST], &checks([("b", port, 1)])).await.is_empty());
    assert!(ask(port, "/").await.expect("an answer").body.contains(r#""name":"b""#));
}

#[test]
fn health_checks_listen_on_the_node_port_addresses() {
    let ips =
        |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|ip| ip.parse().expect("an address")).collect() };
    let cidrs = |texts: &[&str]| {
        let cidrs = texts.iter().map(|c| c.parse().expect("a CIDR")).collect();
        NodePortAddresses { cidrs, ..NodePortAddresses::default() }
    };
    let primary_only = NodePortAddresses { primary: true, ..NodePortAddresses::default() };
    let primary = ips(&["10.0.0.5", "10.0.0.6", "fd00::5"]);
    let local = ips(&["127.0.0.1", "10.0.0.5", "10.9.0.1", "::1", "fd00::5"]);
    for (node_ports, wanted) in [
        (primary_only.clone(), &["10.0.0.5", "fd00::5"][..]),
        (
            NodePortAddresses { primary: true, ..cidrs(&["10.9.0.0/16"]) },
            &["10.0.0.5", "10.9.0.1", "fd00::5"],
        ),
        (cidrs(&["10.0.0.0/16", "fd00::/8"]), &["10.0.0.5", "fd00::5"]),
        (cidrs(&["10.0.0.0/8"]), &["10.0.0.5", "10.9.0.1", "::"]),
        (cidrs(&["0.0.0.0/0", "::/0"]), &["0.0.0.0", "::"]),
        (cidrs(&["192.168.0.0/16", "fe80::/10"]), &["0.0.0.0", "::"]),
    ] {
        assert_eq!(listen_addresses(&node_ports, &primary, &local), ips(wanted), "{node_ports:?}");
    }
    assert_eq!(listen_addresses(&primary_only, &[], &local), ips(&["0.0.0.0", "::"]));
}
