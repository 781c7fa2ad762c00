//! List and watch against a fake API server: every way in which a list or a watch can end.

use crate::api::*;
use portway_api::metadata_only::ConfigMap;
use portway_api::{EndpointSlice, Resource, Service, ServiceCidr};
use portway_client::{Recorder, Regarding, Selection};
use std::time::{Duration, Instant};

/// Sends an empty list at version 10 and opens the watch that follows.
async fn listed(api: &Api, notices: &mut Notices) -> Chunks {
    api.next().await.reply(200, PROTOBUF, page(&[], "10", "")).await;
    assert_eq!(take(notices, 2).await, ["init", "done"]);
    let request = api.next().await;
    assert_eq!(request.parameter("resourceVersion"), Some("10"));
    request.stream(STREAM).await
}

#[tokio::test]
async fn a_list_is_streamed_and_the_response_continues_as_a_watch() {
    let api = Api::start().await;
    let selection =
        Selection { field_selector: Some("spec.clusterIP!=None".into()), ..Selection::labels("!x") };
    let mut notices = start::<Service>(&api, selection).await;
    let request = api.next().await;
    assert_eq!((request.path.as_str(), request.parameter("watch")), ("/api/v1/services", Some("true")));
    assert_eq!(request.parameter("sendInitialEvents"), Some("true"));
    assert_eq!(request.parameter("resourceVersionMatch"), Some("NotOlderThan"));
    assert_eq!(request.parameter("allowWatchBookmarks"), Some("true"));
    assert_eq!((request.parameter("resourceVersion"), request.parameter("limit")), (None, None));
    assert_eq!(request.parameter("labelSelector"), Some("%21x"));
    assert_eq!(request.parameter("fieldSelector"), Some("spec.clusterIP%21%3DNone"));
    let seconds: u32 = request.parameter("timeoutSeconds").unwrap().parse().unwrap();
    assert!((300..600).contains(&seconds));
    assert_eq!(
        request.headers["accept"],
        "application/vnd.kubernetes.protobuf;stream=watch, application/json"
    );
    // Without TLS, no credential is sent.
    assert_eq!(request.headers.get("authorization"), None);
    let mut stream = request.stream(STREAM).await;
    stream.send(event("ADDED", "a", "3")).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "+a"], "before the rest has been sent");
    stream.send(event("ADDED", "b", "7")).await;
    stream.send(initial_end("10")).await;
    stream.send(event("MODIFIED", "a", "11")).await;
    assert_eq!(take(&mut notices, 3).await, ["+b", "done", "+a"]);
    drop(stream);
    let again = api.next().await;
    assert_eq!(
        (again.parameter("resourceVersion"), again.parameter("sendInitialEvents")),
        (Some("11"), None)
    );
}

#[tokio::test]
async fn a_broken_stream_starts_over() {
    let api = Api::start().await;
    let mut notices = start::<Service>(&api, Selection::all()).await;
    let mut stream = api.next().await.stream(STREAM).await;
    stream.send(event("ADDED", "a", "3")).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "+a"]);
    drop(stream);
    let again = api.next().await;
    assert_eq!(
        (again.parameter("sendInitialEvents"), again.parameter("resourceVersion")),
        (Some("true"), None)
    );
    let mut stream = again.stream(STREAM).await;
    stream.send(initial_end("10")).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
}

#[tokio::test]
async fn a_relist_streams_from_the_last_version() {
    let api = Api::start().await;
    let mut notices = start::<Service>(&api, Selection::all()).await;
    let mut stream = api.next().await.stream(STREAM).await;
    stream.send(initial_end("10")).await;
    stream.send(error(410, "Expired")).await;
    let again = api.next().await;
    assert_eq!(
        (again.parameter("sendInitialEvents"), again.parameter("resourceVersion")),
        (Some("true"), Some("10"))
    );
    let mut stream = again.stream(STREAM).await;
    stream.send(event("ADDED", "z", "12")).await;
    stream.send(initial_end("20")).await;
    assert_eq!(take(&mut notices, 5).await, ["init", "done", "init", "+z", "done"]);
}

#[tokio::test]
async fn metadata_is_requested_alone_under_the_name_of_a_list_and_of_an_object() {
    const PROTOBUF_FIRST: [&str; 2] = ["application/vnd.kubernetes.protobuf", "application/json"];
    let api = Api::start().await;
    let _notices = start::<ConfigMap>(&api, Selection::all()).await;
    for (stream, kind) in [(";stream=watch", "PartialObjectMetadata"), ("", "PartialObjectMetadataList")] {
        let request = api.next().await;
        let [protobuf, json] = PROTOBUF_FIRST;
        let partial = format!(";as={kind};g=meta.k8s.io;v=v1");
        let expected = format!("{protobuf}{stream}{partial}, {json}{partial}, {protobuf}{stream}, {json}");
        assert_eq!(request.headers["accept"], expected);
        request.reply(422, PROTOBUF, status(422, "Invalid", "sendInitialEvents is forbidden")).await;
    }
}

#[tokio::test]
async fn a_server_that_refuses_to_stream_is_listed_from_its_cache_by_all_watches() {
    let api = Api::start().await;
    let client = api.client().await;
    let watch =
        || portway_client::Source::<Summary>::kubernetes(&client).watch::<Service>(Selection::all()).start();
    let mut notices = watch();
    refuse_stream(&api).await;
    let list = api.next().await;
    assert_eq!((list.path.as_str(), list.parameter("limit")), ("/api/v1/services", None));
    assert_eq!((list.parameter("resourceVersion"), list.parameter("watch")), (Some("0"), None));
    assert_eq!(list.headers["accept"], "application/vnd.kubernetes.protobuf, application/json");
    list.reply(200, PROTOBUF, page(&["a", "b"], "10", "")).await;
    assert_eq!(take(&mut notices, 4).await, ["init", "+a", "+b", "done"]);
    let watched = api.next().await;
    assert_eq!(
        (watched.parameter("watch"), watched.parameter("resourceVersion")),
        (Some("true"), Some("10"))
    );
    assert_eq!(watched.parameter("sendInitialEvents"), None);
    let mut stream = watched.stream(STREAM).await;
    stream.send(event("DELETED", "b", "12")).await;
    assert_eq!(next(&mut notices).await, "-b");
    // Another watch of the same client does not request a stream.
    let _second = watch();
    assert_eq!(api.next().await.parameter("sendInitialEvents"), None);
}

#[tokio::test]
async fn a_server_that_ignores_send_initial_events_is_listed_from_its_cache() {
    let api = Api::start().await;
    let mut notices = start::<Service>(&api, Selection::all()).await;
    let mut stream = api.next().await.stream(STREAM).await;
    stream.send(event("ADDED", "a", "3")).await;
    stream.send(event("BOOKMARK", "", "9")).await;
    let list = api.next().await;
    assert_eq!((list.parameter("watch"), list.parameter("resourceVersion")), (None, Some("0")));
    list.reply(200, PROTOBUF, page(&["a"], "10", "")).await;
    assert_eq!(take(&mut notices, 5).await, ["init", "+a", "init", "+a", "done"]);
    stream.wait_closed().await;
}

#[tokio::test]
async fn pages_follow_a_failed_list_from_the_cache() {
    let api = Api::start().await;
    let mut notices = start_pages(&api).await;
    let first = api.next().await;
    assert_eq!((first.parameter("limit"), first.parameter("resourceVersion")), (Some("500"), None));
    first.reply(200, PROTOBUF, page(&["a", "b"], "10", "t1")).await;
    let second = api.next().await;
    assert_eq!((second.parameter("continue"), second.parameter("limit")), (Some("t1"), Some("500")));
    second.reply(200, PROTOBUF, page(&["c"], "10", "")).await;
    assert_eq!(take(&mut notices, 5).await, ["init", "+a", "+b", "+c", "done"]);
    assert_eq!(api.next().await.parameter("resourceVersion"), Some("10"));
}

#[tokio::test]
async fn objects_are_sent_as_their_bytes_arrive() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
    let mut list = api.next().await.stream(PROTOBUF).await;
    let bytes = page(&["a", "b"], "10", "");
    let (front, back) = bytes.split_at(bytes.len() - 5);
    list.send(front).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "+a"], "before the rest of the page has been sent");
    list.send(back).await;
    list.end().await;
    assert_eq!(take(&mut notices, 2).await, ["+b", "done"]);
}

#[tokio::test]
async fn an_expired_page_starts_the_list_over() {
    let api = Api::start().await;
    let mut notices = start_pages(&api).await;
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
async fn a_broken_page_is_requested_again() {
    let api = Api::start().await;
    let mut notices = start_pages(&api).await;
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
async fn a_watch_resumes_from_the_last_bookmark() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
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
async fn after_a_broken_connection_a_watch_resumes_from_the_last_version() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
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
    assert_eq!(next(&mut notices).await, "+b", "one broken connection is not an outage");
}

#[tokio::test]
async fn truncated_messages_in_watches_are_one_outage_until_one_can_be_read() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
    let mut stream = listed(&api, &mut notices).await;
    stream.send(event("ADDED", "a", "11")).await;
    assert_eq!(next(&mut notices).await, "+a");
    // The length of the frame is that of the bytes, but the message in it is cut off.
    let whole = event("ADDED", "b", "12");
    let cut = &whole[4..whole.len() - 9];
    let truncated = [&(cut.len() as u32).to_be_bytes()[..], cut].concat();
    for attempt in 0..3 {
        stream.send(&truncated).await;
        let again = api.next().await;
        assert_eq!(
            (again.parameter("watch"), again.parameter("resourceVersion")),
            (Some("true"), Some("11"))
        );
        stream = again.stream(STREAM).await;
        if attempt == 0 {
            let outage = next(&mut notices).await;
            assert!(outage.starts_with("outage"), "{outage}");
        }
    }
    stream.send(event("ADDED", "b", "12")).await;
    assert_eq!(take(&mut notices, 2).await, ["recovered Service", "+b"], "the outage was reported once");
}

#[tokio::test]
async fn after_a_410_event_the_resource_is_listed_again_at_once() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
    let mut stream = listed(&api, &mut notices).await;
    stream.send(event("BOOKMARK", "", "11")).await;
    stream.send(error(410, "Expired")).await;
    let again = api.next().await;
    assert_eq!((again.parameter("watch"), again.parameter("resourceVersion")), (None, Some("11")));
    again.reply(200, PROTOBUF, page(&["z"], "90", "")).await;
    assert_eq!(take(&mut notices, 3).await, ["init", "+z", "done"]);
    assert_eq!(api.next().await.parameter("resourceVersion"), Some("90"));
    stream.wait_closed().await;
}

#[tokio::test]
async fn after_a_410_status_the_resource_is_listed_again() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
    api.next().await.reply(200, PROTOBUF, page(&["a"], "10", "")).await;
    assert_eq!(take(&mut notices, 3).await, ["init", "+a", "done"]);
    api.next().await.reply(410, JSON, r#"{"kind":"Status","reason":"Gone","code":410}"#).await;
    let again = api.next().await;
    assert_eq!(again.parameter("watch"), None);
    again.reply(200, PROTOBUF, page(&[], "20", "")).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
}

#[tokio::test]
async fn after_another_error_event_the_watch_resumes_from_the_same_version() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
    let mut stream = listed(&api, &mut notices).await;
    stream.send(error(500, "InternalError")).await;
    let again = api.next().await;
    assert_eq!((again.parameter("watch"), again.parameter("resourceVersion")), (Some("true"), Some("10")));
    let _open = again.stream(STREAM).await;
    let outage = next(&mut notices).await;
    assert!(outage.contains("refuses to watch services: 500 too old"), "{outage}");
    assert_eq!(next(&mut notices).await, "recovered Service");
}

#[tokio::test]
async fn a_403_is_reported_once_with_the_missing_rbac_rule() {
    let api = Api::start().await;
    let mut notices = start::<EndpointSlice>(&api, Selection::all()).await;
    let message = "endpointslices.discovery.k8s.io is forbidden: User \"bob\" cannot list resource";
    let forbidden = || status(403, "Forbidden", message);
    // The stream, then the list that stands in for it.
    api.next().await.reply(403, PROTOBUF, forbidden()).await;
    api.next().await.reply(403, PROTOBUF, forbidden()).await;
    let outage = next(&mut notices).await;
    let expected = "bob may not list endpointslices.discovery.k8s.io: grant verbs [list watch] by adding to its \
        ClusterRole's rules: - {apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], \
        verbs: [\"list\", \"watch\"]}";
    assert_eq!(outage, format!("outage {expected}"));
    api.next().await.reply(403, PROTOBUF, forbidden()).await;
    api.next().await.reply(200, PROTOBUF, page(&[], "10", "")).await;
    assert_eq!(take(&mut notices, 3).await, ["recovered EndpointSlice", "init", "done"]);
}

#[tokio::test]
async fn objects_that_may_be_listed_but_not_watched_are_listed() {
    let api = Api::start().await;
    let mut notices = start::<Service>(&api, Selection::all()).await;
    let message = "services is forbidden: User \"bob\" cannot watch resource";
    api.next().await.reply(403, PROTOBUF, status(403, "Forbidden", message)).await;
    let list = api.next().await;
    assert_eq!((list.parameter("watch"), list.parameter("resourceVersion")), (None, Some("0")));
    list.reply(200, PROTOBUF, page(&["a"], "10", "")).await;
    assert_eq!(take(&mut notices, 3).await, ["init", "+a", "done"]);
    api.next().await.reply(403, PROTOBUF, status(403, "Forbidden", message)).await;
    let outage = next(&mut notices).await;
    assert!(outage.starts_with("outage bob may not watch services: grant verbs [list watch]"), "{outage}");
}

#[tokio::test]
async fn a_json_response_is_accepted_instead_of_protobuf() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
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
async fn an_optional_resource_that_is_not_served_is_an_empty_list() {
    let api = Api::start().await;
    let mut notices = start::<ServiceCidr>(&api, Selection { optional: true, ..Selection::all() }).await;
    let request = api.next().await;
    assert_eq!(request.path, "/apis/networking.k8s.io/v1/servicecidrs");
    request.reply(404, "text/plain", "404 page not found\n").await;
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
    api.expect_no_request(Duration::from_millis(1500)).await;
    assert!(notices.ready().is_none(), "a missing optional resource is not an outage");
}

#[tokio::test]
async fn retry_after_is_obeyed() {
    let api = Api::start().await;
    let mut notices = start::<Service>(&api, Selection::all()).await;
    let busy = "Too many requests, please try again later.\n";
    let request = api.next().await;
    let refused = Instant::now();
    request.reply_with(429, "text/plain", "Retry-After: 2\r\n", busy).await;
    let outage = next(&mut notices).await;
    assert!(outage.contains("overloaded or starting: Too many requests"), "{outage}");
    api.next().await;
    assert!(refused.elapsed() >= Duration::from_secs(2), "the request was repeated too early");
}

#[tokio::test]
async fn the_rate_limit_applies_to_requests_but_not_to_further_pages() {
    let mut api = Api::start().await;
    // A fourth limited request would wait a quarter of an hour.
    (api.access.qps, api.access.burst) = (0.001, 3);
    let mut notices = start_pages(&api).await;
    for token in ["t1", "t2", "t3", ""] {
        api.next().await.reply(200, PROTOBUF, page(&[], "10", token)).await;
    }
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
    api.expect_no_request(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn the_outage_of_an_unreachable_server_has_its_address() {
    let mut api = Api::start().await;
    // A port that nothing listens on.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    api.access.master = Some(format!("http://{closed}"));
    let mut notices = start::<Service>(&api, Selection::all()).await;
    let outage = next(&mut notices).await;
    assert!(outage.contains(&format!("cannot reach the API server at http://{closed}: ")), "{outage}");
    assert!(outage.contains("refused") && outage.contains("the address in --master"), "{outage}");
}

#[tokio::test]
async fn a_response_that_is_not_from_an_api_server_is_an_outage() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
    api.next().await.reply(200, "text/html", "<html>hello</html>").await;
    assert_eq!(next(&mut notices).await, "init");
    let outage = next(&mut notices).await;
    assert!(outage.contains("is that of an API server"), "{outage}");
}

#[tokio::test]
async fn a_response_is_read_only_as_fast_as_the_consumer_receives() {
    let api = Api::start().await;
    let mut notices = start_lists(&api).await;
    let mut list = api.next().await.stream(PROTOBUF).await;
    let name = "x".repeat(1000);
    let bytes = page(&vec![name.as_str(); 15_000], "10", "");
    // Far more than the buffers of two sockets and the channel: it cannot be sent before the consumer receives it.
    let sent = tokio::time::timeout(Duration::from_millis(500), list.send(&bytes)).await;
    assert!(sent.is_err(), "{} bytes were sent although the consumer received nothing", bytes.len());
    assert_eq!(take(&mut notices, 3).await[0], "init");
    drop(notices);
    list.wait_closed().await;
}

#[tokio::test]
async fn a_watch_ends_when_the_consumer_drops_the_source() {
    let api = Api::start().await;
    let client = api.client().await;
    let (sink, mut notices) = portway_client::channel::<Summary>();
    let watching = tokio::spawn(portway_client::watch::<Service, Summary>(client, Selection::all(), sink));
    let mut stream = api.next().await.stream(STREAM).await;
    stream.send(initial_end("10")).await;
    assert_eq!(take(&mut notices, 2).await, ["init", "done"]);
    drop(notices);
    tokio::time::timeout(TIMEOUT, watching).await.expect("the watch does not end").unwrap();
}

#[tokio::test]
async fn a_repeated_warning_is_one_event() {
    let api = Api::start().await;
    let (recorder, writer) = Recorder::new(&api.client().await, "kube-proxy", "node-1");
    tokio::spawn(writer);
    let regarding = || Regarding {
        resource: Service::TYPE,
        namespace: "shop".into(),
        name: "web".into(),
        uid: "u1".into(),
    };
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
    assert_eq!(body["note"], "node port 30001 is taken", "the repetition is counted, not written");
}
