//! List and watch against a server that the test plays: every way in which a list or a watch can end.

mod api;

use api::*;
use portway_client::{Notice, Recorder, Regarding, Selection, watch};
use portway_model::api::Kind;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, channel};

/// Starts a watch of Services.
async fn start(api: &Api) -> Receiver<Notice> {
    start_kind(api, Kind::Service).await
}

async fn start_kind(api: &Api, kind: Kind) -> Receiver<Notice> {
    let (sender, receiver) = channel(16);
    tokio::spawn(watch(api.client().await, Selection::all(kind), sender));
    receiver
}

/// Plays an empty list at version 10 and opens the watch that follows.
async fn listed(api: &Api, notices: &mut Receiver<Notice>) -> Chunks {
    api.next().await.reply(200, PROTOBUF, page(&[], "10", "")).await;
    assert_eq!(take(notices, 2).await, ["init", "done"]);
    let request = api.next().await;
    assert_eq!(request.parameter("resourceVersion"), Some("10"));
    request.stream(STREAM).await
}

#[tokio::test]
async fn a_list_is_paged_and_followed_by_a_watch() {
    let api = Api::start().await;
    let (sender, mut notices) = channel(16);
    let selection = Selection { label_selector: Some("!x".into()), ..Selection::all(Kind::Service) };
    tokio::spawn(watch(api.client().await, selection, sender));

    let first = api.next().await;
    assert_eq!((first.path.as_str(), first.parameter("limit")), ("/api/v1/services", Some("500")));
    assert_eq!((first.parameter("resourceVersion"), first.parameter("continue")), (None, None));
    assert_eq!(first.parameter("labelSelector"), Some("%21x"));
    assert_eq!(first.headers["accept"], "application/vnd.kubernetes.protobuf, application/json");
    // Without TLS, no credential is sent.
    assert_eq!(first.headers.get("authorization"), None);
    first.reply(200, PROTOBUF, page(&["a", "b"], "10", "t1")).await;
    let second = api.next().await;
    assert_eq!((second.parameter("continue"), second.parameter("labelSelector")), (Some("t1"), Some("%21x")));
    second.reply(200, PROTOBUF, page(&["c"], "10", "")).await;
    assert_eq!(take(&mut notices, 5).await, ["init", "+a", "+b", "+c", "done"]);

    let request = api.next().await;
    assert_eq!(
        (request.parameter("watch"), request.parameter("resourceVersion")),
        (Some("true"), Some("10"))
    );
    assert_eq!(request.parameter("allowWatchBookmarks"), Some("true"));
    let seconds: u32 = request.parameter("timeoutSeconds").unwrap().parse().unwrap();
    assert!((300..600).contains(&seconds));
    assert_eq!(
        request.headers["accept"],
        "application/vnd.kubernetes.protobuf;stream=watch, application/json"
    );
    let mut stream = request.stream(STREAM).await;
    stream.send(event("MODIFIED", "a", "11")).await;
    stream.send(event("DELETED", "b", "12")).await;
    assert_eq!(take(&mut notices, 2).await, ["+a", "-b"]);
}

#[tokio::test]
async fn objects_are_sent_as_their_bytes_arrive() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    let mut list = api.next().await.stream(PROTOBUF).await;
    let bytes = page(&["a", "b"], "10", "");
    let (front, back) = bytes.split_at(bytes.len() - 5);
    list.send(front).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "+a"], "while the rest of the page is still on its way");
    list.send(back).await;
    list.end().await;
    assert_eq!(take(&mut notices, 2).await, ["+b", "done"]);
}

#[tokio::test]
async fn an_expired_page_starts_the_list_over() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    api.next().await.reply(200, PROTOBUF, page(&["a"], "10", "t1")).await;
    let second = api.next().await;
    assert_eq!(second.parameter("continue"), Some("t1"));
    second.reply(410, PROTOBUF, status(410, "Expired", "the continue token is too old")).await;
    let again = api.next().await;
    assert_eq!(again.parameter("continue"), None);
    again.reply(200, PROTOBUF, page(&["b"], "20", "")).await;
    assert_eq!(take(&mut notices, 5).await, ["init", "+a", "init", "+b", "done"]);
    assert_eq!(api.next().await.parameter("resourceVersion"), Some("20"));
}

#[tokio::test]
async fn a_page_that_breaks_off_is_asked_for_again() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    api.next().await.reply(200, PROTOBUF, page(&["a"], "10", "t1")).await;
    let mut second = api.next().await.stream(PROTOBUF).await;
    let bytes = page(&["b", "c"], "10", "");
    second.send(&bytes[..bytes.len() - 5]).await;
    drop(second);
    let again = api.next().await;
    assert_eq!(again.parameter("continue"), Some("t1"));
    again.reply(200, PROTOBUF, bytes).await;
    assert_eq!(take(&mut notices, 6).await, ["init", "+a", "+b", "+b", "+c", "done"]);
}

#[tokio::test]
async fn a_watch_goes_on_from_the_last_bookmark() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    let mut stream = listed(&api, &mut notices).await;
    stream.send(event("ADDED", "a", "11")).await;
    stream.send(event("BOOKMARK", "", "50")).await;
    stream.end().await;
    let again = api.next().await;
    assert_eq!((again.parameter("watch"), again.parameter("resourceVersion")), (Some("true"), Some("50")));
    again.stream(STREAM).await.send(event("ADDED", "b", "51")).await;
    assert_eq!(take(&mut notices, 2).await, ["+a", "+b"]);
}

#[tokio::test]
async fn a_dropped_connection_goes_on_from_the_last_version_without_a_list() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    let mut stream = listed(&api, &mut notices).await;
    stream.send(event("ADDED", "a", "11")).await;
    let cut = event("ADDED", "b", "12");
    stream.send(&cut[..cut.len() / 2]).await;
    assert_eq!(next(&mut notices).await, "+a");
    drop(stream);
    let again = api.next().await;
    assert_eq!((again.parameter("watch"), again.parameter("resourceVersion")), (Some("true"), Some("11")));
    let mut stream = again.stream(STREAM).await;
    stream.send(event("ADDED", "b", "12")).await;
    assert_eq!(next(&mut notices).await, "+b", "and one broken connection is no trouble");
}

#[tokio::test]
async fn a_410_as_an_event_lists_anew_at_once() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    let mut stream = listed(&api, &mut notices).await;
    stream.send(event("BOOKMARK", "", "11")).await;
    stream.send(error(410, "Expired")).await;
    let again = api.next().await;
    assert_eq!((again.parameter("watch"), again.parameter("limit")), (None, Some("500")));
    again.reply(200, PROTOBUF, page(&["z"], "90", "")).await;
    assert_eq!(take(&mut notices, 3).await, ["init", "+z", "done"]);
    assert_eq!(api.next().await.parameter("resourceVersion"), Some("90"));
    stream.hung_up().await;
}

#[tokio::test]
async fn a_410_as_a_status_lists_anew() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    api.next().await.reply(200, PROTOBUF, page(&["a"], "10", "")).await;
    assert_eq!(take(&mut notices, 3).await, ["init", "+a", "done"]);
    api.next().await.reply(410, JSON, r#"{"kind":"Status","reason":"Gone","code":410}"#).await;
    let again = api.next().await;
    assert_eq!(again.parameter("watch"), None);
    again.reply(200, PROTOBUF, page(&[], "20", "")).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
}

#[tokio::test]
async fn another_error_event_watches_again_from_the_same_version() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    let mut stream = listed(&api, &mut notices).await;
    stream.send(error(500, "InternalError")).await;
    let again = api.next().await;
    assert_eq!((again.parameter("watch"), again.parameter("resourceVersion")), (Some("true"), Some("10")));
    let _open = again.stream(STREAM).await;
    let trouble = next(&mut notices).await;
    assert!(trouble.contains("refuses to watch services: 500 too old"), "{trouble}");
    assert_eq!(next(&mut notices).await, "recovered Service");
}

#[tokio::test]
async fn a_403_names_the_missing_rule_once_and_recovers() {
    let api = Api::start().await;
    let mut notices = start_kind(&api, Kind::EndpointSlice).await;
    let message = "endpointslices.discovery.k8s.io is forbidden: User \"bob\" cannot list resource";
    api.next().await.reply(403, PROTOBUF, status(403, "Forbidden", message)).await;
    let trouble = next(&mut notices).await;
    let expected = "bob may not list endpointslices.discovery.k8s.io: grant verbs [list watch] by adding to its \
        ClusterRole's rules: - {apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], \
        verbs: [\"list\", \"watch\"]}";
    assert_eq!(trouble, format!("trouble {expected}"));
    api.next().await.reply(403, PROTOBUF, status(403, "Forbidden", message)).await;
    api.next().await.reply(200, PROTOBUF, page(&[], "10", "")).await;
    assert_eq!(take(&mut notices, 3).await, ["recovered EndpointSlice", "init", "done"]);
}

#[tokio::test]
async fn json_is_understood_where_protobuf_is_not_spoken() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    let list = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"10"},"items":[
        {"metadata":{"name":"a","namespace":"default"},"spec":{"ports":[{"port":80}],"externalIPs":null}},
        {"metadata":{"name":"bad","namespace":"default"},"spec":{"ports":[{"port":"80"}]}},
        {"metadata":{"name":"c","namespace":"default"}}]}"#;
    api.next().await.reply(200, JSON, list).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "+a"]);
    let rejected = next(&mut notices).await;
    assert!(rejected.starts_with("rejected Service default/bad: invalid type: string \"80\""), "{rejected}");
    assert_eq!(take(&mut notices, 2).await, ["+c", "done"]);

    let mut stream = api.next().await.stream(JSON).await;
    stream
        .send("{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\",\"namespace\":\"default\",")
        .await;
    stream.send("\"resourceVersion\":\"11\"}}}\n").await;
    assert_eq!(next(&mut notices).await, "-a");
    stream.end().await;
    assert_eq!(api.next().await.parameter("resourceVersion"), Some("11"));
}

#[tokio::test]
async fn a_kind_the_server_lacks_is_an_empty_list() {
    let api = Api::start().await;
    let mut notices = start_kind(&api, Kind::ServiceCidr).await;
    let request = api.next().await;
    assert_eq!(request.path, "/apis/networking.k8s.io/v1/servicecidrs");
    request.reply(404, "text/plain", "404 page not found\n").await;
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
    api.nothing_for(Duration::from_millis(1500)).await;
    assert!(notices.try_recv().is_err(), "and no trouble");
}

#[tokio::test]
async fn a_busy_server_is_left_alone_as_long_as_it_asks() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    let busy = "Too many requests, please try again later.\n";
    api.next().await.reply_with(429, "text/plain", "Retry-After: 2\r\n", busy).await;
    let trouble = next(&mut notices).await;
    assert!(trouble.contains("overloaded or starting: Too many requests"), "{trouble}");
    api.nothing_for(Duration::from_millis(1800)).await;
    api.next().await;
}

#[tokio::test]
async fn the_rate_limit_holds_for_requests_but_not_for_pages() {
    let mut api = Api::start().await;
    (api.access.qps, api.access.burst) = (0.2, 1);
    let mut notices = start(&api).await;
    let started = Instant::now();
    for token in ["t1", "t2", "t3", ""] {
        api.next().await.reply(200, PROTOBUF, page(&[], "10", token)).await;
    }
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
    // Limited, three more pages would have taken a quarter of a minute.
    assert!(started.elapsed() < Duration::from_secs(10), "pages are not limited");
    api.next().await;
    assert!(started.elapsed() > Duration::from_millis(4500), "a watch is");
}

#[tokio::test]
async fn an_unreachable_server_is_named() {
    let mut api = Api::start().await;
    // A port that nothing listens on.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    api.access.master = Some(format!("http://{closed}"));
    let mut notices = start(&api).await;
    let trouble = next(&mut notices).await;
    assert!(trouble.contains(&format!("cannot reach the API server at http://{closed}: ")), "{trouble}");
    assert!(trouble.contains("refused") && trouble.contains("the address in --master"), "{trouble}");
}

#[tokio::test]
async fn something_that_is_no_api_server_is_said_to_be_none() {
    let api = Api::start().await;
    let mut notices = start(&api).await;
    api.next().await.reply(200, "text/html", "<html>hello</html>").await;
    assert_eq!(next(&mut notices).await, "init");
    let trouble = next(&mut notices).await;
    assert!(trouble.contains("is an API server's"), "{trouble}");
}

#[tokio::test]
async fn nothing_is_read_ahead_of_a_consumer_that_waits() {
    let api = Api::start().await;
    let (sender, mut notices) = channel(1);
    tokio::spawn(watch(api.client().await, Selection::all(Kind::Service), sender));
    let mut list = api.next().await.stream(PROTOBUF).await;
    let name = "x".repeat(1000);
    let bytes = page(&vec![name.as_str(); 15_000], "10", "");
    // Far more than the buffers of two sockets and ours: it cannot be sent while nobody takes it.
    let sent = tokio::time::timeout(Duration::from_millis(500), list.send(&bytes)).await;
    assert!(sent.is_err(), "{} bytes went out unread", bytes.len());
    assert_eq!(take(&mut notices, 3).await[0], "init");
    drop(notices);
    list.hung_up().await;
}

#[tokio::test]
async fn a_watch_ends_when_nobody_listens() {
    let api = Api::start().await;
    let (sender, mut notices) = channel(16);
    let watching = tokio::spawn(watch(api.client().await, Selection::all(Kind::Service), sender));
    let _stream = listed(&api, &mut notices).await;
    drop(notices);
    tokio::time::timeout(PATIENCE, watching).await.expect("it goes on").unwrap();
}

#[tokio::test]
async fn a_warning_becomes_one_event() {
    let api = Api::start().await;
    let (recorder, writer) = Recorder::new(&api.client().await, "node-1");
    tokio::spawn(writer);
    let regarding =
        || Regarding { kind: Kind::Service, namespace: "shop".into(), name: "web".into(), uid: "u1".into() };
    recorder.warn(regarding(), "PortConflict", "node port 30000 is taken");
    let request = api.next().await;
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/apis/events.k8s.io/v1/namespaces/shop/events")
    );
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!((&body["reason"], &body["type"]), (&"PortConflict".into(), &"Warning".into()));
    assert_eq!((&body["regarding"]["uid"], &body["regarding"]["kind"]), (&"u1".into(), &"Service".into()));
    assert_eq!(body["note"], "node port 30000 is taken");
    let answer = request.body.clone();
    request.reply(201, JSON, answer).await;

    recorder.warn(regarding(), "PortConflict", "node port 30000 is taken");
    recorder.warn(regarding(), "PortConflict", "node port 30001 is taken");
    let request = api.next().await;
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body["note"], "node port 30001 is taken", "the repetition is only counted");
}
