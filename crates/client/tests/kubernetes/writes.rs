//! Writes against a fake API server: the requests that are sent, and which of them are repeated.

use crate::api::*;
use portway_api::{Lease, LeaseSpec, ObjectMeta, Resource, Service};
use portway_client::{
    DeleteOptions, Election, Leadership, ObjectName, Patch, Propagation, Reason, RequestError, Subresource,
    campaign,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn lease(holder: &str, version: &str) -> Lease {
    let metadata = ObjectMeta {
        name: "l".into(),
        namespace: "ns".into(),
        resource_version: version.into(),
        ..ObjectMeta::default()
    };
    let spec = LeaseSpec { holder_identity: Some(holder.into()), ..LeaseSpec::default() };
    Lease { metadata: Some(metadata), spec: Some(spec) }
}

fn json_of(request: &Exchange) -> Value {
    serde_json::from_slice(&request.body).unwrap()
}

fn refusal(code: u16, reason: &str) -> String {
    json!({"kind": "Status", "code": code, "reason": reason, "message": "no"}).to_string()
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
const NAME: ObjectName<'static> = ObjectName { namespace: "ns", name: "l" };

#[tokio::test]
async fn each_write_has_its_method_path_and_media_type() {
    let api = Api::start().await;
    let client = api.client().await;
    let object = lease("me", "7");
    let answer = serde_json::to_string(&object).unwrap();
    let options = DeleteOptions {
        uid: Some("u".into()),
        propagation: Some(Propagation::Foreground),
        grace_seconds: Some(0),
        ..DeleteOptions::default()
    };
    let apply = Patch::Apply { object: json!({"spec": {}}), manager: "por tway", force: true };
    let writes = async {
        assert_eq!(client.get::<Lease>(NAME).await.unwrap(), object);
        client.create(&object).await.unwrap();
        client.replace(&object, Subresource::None).await.unwrap();
        client.replace(&object, Subresource::Status).await.unwrap();
        client.patch::<Lease>(NAME, Subresource::None, &Patch::Merge(json!({"a": 1}))).await.unwrap();
        client.patch::<Lease>(NAME, Subresource::None, &Patch::Json(json!([]))).await.unwrap();
        client.patch::<Lease>(NAME, Subresource::Status, &apply).await.unwrap();
        client.delete::<Lease>(NAME, &options).await.unwrap();
    };
    let server = async {
        let one = format!("{LEASES}/l");
        let status = format!("{one}/status");
        for (method, path, media) in [
            ("GET", &one, "application/json"),
            ("POST", &LEASES.to_owned(), "application/json"),
            ("PUT", &one, "application/json"),
            ("PUT", &status, "application/json"),
            ("PATCH", &one, "application/merge-patch+json"),
            ("PATCH", &one, "application/json-patch+json"),
            ("PATCH", &status, "application/apply-patch+yaml"),
            ("DELETE", &one, "application/json"),
        ] {
            let request = api.next().await;
            assert_eq!((request.method.as_str(), &request.path), (method, path));
            assert_eq!(request.headers["content-type"], media, "{method} {path}");
            match method {
                "POST" | "PUT" => {
                    let body = json_of(&request);
                    assert_eq!(
                        (&body["apiVersion"], &body["kind"]),
                        (&"coordination.k8s.io/v1".into(), &"Lease".into())
                    );
                    assert_eq!(body["metadata"]["resourceVersion"], "7");
                }
                "DELETE" => {
                    let body = json_of(&request);
                    assert_eq!(body["preconditions"], json!({"uid": "u"}));
                    assert_eq!(body["propagationPolicy"], "Foreground");
                }
                _ => {}
            }
            if media.contains("apply") {
                assert_eq!(request.parameter("fieldManager"), Some("por%20tway"));
                assert_eq!(request.parameter("force"), Some("true"));
            }
            request.reply(200, JSON, &answer).await;
        }
    };
    tokio::join!(writes, server);
}

#[tokio::test]
async fn a_request_is_repeated_after_retry_after() {
    let api = Api::start().await;
    let client = api.client().await;
    let object = lease("me", "");
    let server = async {
        let request = api.next().await;
        let refused = Instant::now();
        request.reply_with(429, JSON, "Retry-After: 1\r\n", refusal(429, "TooManyRequests")).await;
        let request = api.next().await;
        assert!(refused.elapsed() >= Duration::from_secs(1), "the request was repeated too early");
        request.reply_with(503, "text/plain", "Retry-After: 0\r\n", "starting").await;
        api.next().await.reply(201, JSON, serde_json::to_string(&object).unwrap()).await;
    };
    let (created, ()) = tokio::join!(client.create(&object), server);
    assert_eq!(created.unwrap(), object);
}

#[tokio::test]
async fn a_create_is_not_repeated_after_a_503_without_retry_after_but_a_get_is() {
    let api = Api::start().await;
    let client = api.client().await;
    let object = lease("me", "");
    let (created, ()) = tokio::join!(client.create(&object), async {
        api.next().await.reply(503, "text/plain", "no upstream").await;
    });
    assert_eq!(created.unwrap_err().reason(), Some(&Reason::Unavailable));
    let (read, ()) = tokio::join!(client.get::<Lease>(NAME), async {
        api.next().await.reply(503, "text/plain", "no upstream").await;
        api.next().await.reply(200, JSON, serde_json::to_string(&object).unwrap()).await;
    });
    assert_eq!(read.unwrap(), object);
}

#[tokio::test]
async fn a_create_without_a_response_is_not_repeated_but_a_get_is() {
    let api = Api::start().await;
    let client = api.client().await;
    let object = lease("me", "");
    let (created, ()) = tokio::join!(client.create(&object), async { drop(api.next().await) });
    let error = created.unwrap_err();
    assert!(matches!(error, RequestError::NoResponse { sent: true, .. }), "{error:?}");
    api.expect_no_request(Duration::from_millis(500)).await;
    let (read, ()) = tokio::join!(client.get::<Service>(ObjectName::new("ns", "web")), async {
        drop(api.next().await);
        let again = api.next().await;
        assert_eq!(again.path, "/api/v1/namespaces/ns/services/web");
        again.reply(404, JSON, refusal(404, "NotFound")).await;
    });
    let error = read.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
    assert_eq!(error.to_string(), format!("the API server refuses to get {} ns/web: 404 no", Service::TYPE));
}

#[tokio::test]
async fn a_replace_returns_a_conflict_and_an_update_reads_the_object_again() {
    let api = Api::start().await;
    let client = api.client().await;
    let mine = lease("me", "1");
    let (replaced, ()) = tokio::join!(client.replace(&mine, Subresource::None), async {
        api.next().await.reply(409, JSON, refusal(409, "Conflict")).await;
    });
    assert_eq!(replaced.unwrap_err().reason(), Some(&Reason::Conflict));
    let mut seen = Vec::new();
    let update = client.update(NAME, Subresource::None, |lease: &mut Lease| {
        let spec = lease.spec.as_mut().unwrap();
        seen.push(spec.holder_identity.replace("me".into()).unwrap());
        true
    });
    let server = async {
        for (holder, version, code) in [("a", "1", 409), ("b", "2", 200)] {
            let read = api.next().await;
            assert_eq!(read.method, "GET");
            read.reply(200, JSON, serde_json::to_string(&lease(holder, version)).unwrap()).await;
            let write = api.next().await;
            assert_eq!(json_of(&write)["metadata"]["resourceVersion"], version);
            let body = if code == 200 {
                String::from_utf8(write.body.clone()).unwrap()
            } else {
                refusal(409, "Conflict")
            };
            write.reply(code, JSON, body).await;
        }
    };
    let (updated, ()) = tokio::join!(update, server);
    assert_eq!(updated.unwrap().spec.unwrap().holder_identity.as_deref(), Some("me"));
    assert_eq!(seen, ["a", "b"]);
}

#[tokio::test]
async fn a_lease_is_acquired_renewed_and_released() {
    let api = Api::start().await;
    let client = api.client().await;
    let election = Election { retry_period: Duration::from_millis(10), ..Election::new("ns", "l", "me") };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut changes = Vec::new();
    let candidate = campaign(&client, election, async { drop(stopped.await) }, |change| changes.push(change));
    let server = async {
        let read = api.next().await;
        assert_eq!(
            (read.method.as_str(), read.path.as_str()),
            ("GET", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l")
        );
        read.reply(404, JSON, refusal(404, "NotFound")).await;
        let create = api.next().await;
        assert_eq!((create.method.as_str(), create.path.as_str()), ("POST", LEASES));
        let mut held = json_of(&create);
        assert_eq!(
            (&held["spec"]["holderIdentity"], &held["spec"]["leaseTransitions"]),
            (&"me".into(), &0.into())
        );
        assert_eq!(held["spec"]["leaseDurationSeconds"], 15);
        held["metadata"]["resourceVersion"] = "1".into();
        create.reply(201, JSON, held.to_string()).await;
        api.next().await.reply(200, JSON, held.to_string()).await;
        let renew = api.next().await;
        assert_eq!(
            (renew.method.as_str(), &json_of(&renew)["metadata"]["resourceVersion"]),
            ("PUT", &"1".into())
        );
        assert_eq!(json_of(&renew)["spec"]["acquireTime"], held["spec"]["acquireTime"]);
        held = json_of(&renew);
        renew.reply(200, JSON, held.to_string()).await;
        drop(stop);
        // One more renewal may be in progress.
        loop {
            let request = api.next().await;
            match request.method.as_str() {
                "GET" => request.reply(200, JSON, held.to_string()).await,
                _ => {
                    held = json_of(&request);
                    request.reply(200, JSON, held.to_string()).await;
                    if held["spec"]["holderIdentity"] == "" {
                        break;
                    }
                }
            }
        }
        assert_eq!(held["spec"]["leaseDurationSeconds"], 1);
    };
    tokio::join!(candidate, server);
    assert_eq!(changes, [Leadership::Acquired, Leadership::Lost]);
}
