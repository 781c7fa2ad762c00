//! In place of kube-controller-manager: its slices, its names, its flags.

use crate::cluster::{ControllerLab, WAIT_TIMEOUT};
use portway_lab::eventually;
use portway_model::api::complete::{Endpoint, EndpointPort, EndpointSlice};
use portway_model::api::{EndpointConditions, ObjectMeta, ObjectReference, OwnerReference};
use portway_testkit::battery::PORT;

/// A slice as kube-controller-manager writes it: with a random name, and with the version of the Pod.
fn slice_of_kube_controller_manager() -> EndpointSlice {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    EndpointSlice {
        metadata: Some(ObjectMeta {
            name: "web-x7k2p".to_owned(),
            generate_name: "web-".to_owned(),
            namespace: "default".to_owned(),
            uid: "uid-of-slice".to_owned(),
            labels: [
                label("kubernetes.io/service-name", "web"),
                label("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io"),
            ]
            .into(),
            annotations: [label("endpoints.kubernetes.io/last-change-trigger-time", "2026-11-18T10:00:00Z")]
                .into(),
            owner_references: vec![OwnerReference {
                kind: "Service".to_owned(),
                name: "web".to_owned(),
                uid: "uid-of-web".to_owned(),
                api_version: "v1".to_owned(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }],
            ..ObjectMeta::default()
        }),
        address_type: "IPv4".to_owned(),
        ports: vec![EndpointPort {
            name: Some(String::new()),
            protocol: Some("TCP".to_owned()),
            port: Some(PORT.into()),
            app_protocol: None,
        }],
        endpoints: vec![Endpoint {
            addresses: vec!["10.244.9.1".to_owned()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            }),
            target_ref: Some(ObjectReference {
                kind: "Pod".to_owned(),
                namespace: "default".to_owned(),
                name: "web-1".to_owned(),
                uid: "uid-of-web-1".to_owned(),
                resource_version: "17".to_owned(),
                ..ObjectReference::default()
            }),
            node_name: Some("node1".to_owned()),
            zone: Some("zone-a".to_owned()),
            ..Endpoint::default()
        }],
    }
}

pub(crate) fn unchanged(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.pod_at("web", "web-1", "10.244.9.1", true);
    lab.api.put(slice_of_kube_controller_manager());
    lab.start()?;
    // The Endpoints object is missing, which shows that the Service has been dealt with.
    lab.expect("web", &["10.244.9.1"])?;
    lab.pod_at("web", "web-2", "10.244.9.2", true);
    lab.expect("web", &["10.244.9.1", "10.244.9.2"])?;
    let writes: Vec<String> = lab.writes().into_iter().filter(|write| write.contains("slices")).collect();
    if writes == ["PUT endpointslices default/web-x7k2p"] { Ok(()) } else { Err(format!("{writes:?}")) }
}

pub(crate) fn pages(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.pod_at("web", "web-1", "10.244.9.1", true);
    lab.start_with(&["--profiling"])?;
    lab.expect("web", &["10.244.9.1"])?;
    let complete = || {
        let page = lab.page(10264, "/metrics")?;
        let lines = [
            r#"leader_election_master_status{name="kube-controller-manager"} 1"#,
            r#"endpoint_slice_controller_changes{operation="create"} 1"#,
            "endpoint_slice_controller_endpoints_desired 1",
            "endpoint_slice_controller_num_endpoint_slices 1",
            r#"workqueue_depth{name="endpoint_slice"} 0"#,
            r#"workqueue_adds_total{name="endpoint"}"#,
            r#"workqueue_queue_duration_seconds_count{name="endpoint_slice"}"#,
            r#"rest_client_requests_total{code="201""#,
            "process_resident_memory_bytes ",
        ];
        match lines.iter().find(|line| !page.contains(**line)) {
            Some(missing) => Err(format!("{missing} is missing in\n{page}")),
            None => Ok(()),
        }
    };
    eventually(WAIT_TIMEOUT, complete).map_err(|e| e.to_string())?;
    for path in ["/healthz", "/livez", "/debug/pprof/"] {
        let page = lab.page(10264, path)?;
        if !page.starts_with("HTTP/1.0 200") {
            return Err(format!("{path}: {page}"));
        }
    }
    Ok(())
}

pub(crate) fn mistakes(lab: &mut ControllerLab) -> Result<(), String> {
    lab.start_with(&["--controllers=-endpoint", "--leader-elect-retry-period=1h"])?;
    let controller = lab.controllers.first_mut().ok_or("no process")?;
    controller.wait_for("no controller is left to run", WAIT_TIMEOUT).map_err(|e| e.to_string())?;
    controller
        .wait_for("--leader-elect-retry-period must be less", WAIT_TIMEOUT)
        .map(drop)
        .map_err(|e| e.to_string())
}
