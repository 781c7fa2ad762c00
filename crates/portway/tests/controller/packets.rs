//! From a Pod to a packet, through controllers and proxy.

use crate::cluster::{ControllerLab, WAIT_TIMEOUT};
use portway_lab::eventually;
use portway_model::api::complete::EndpointSlice;
use portway_model::api::{EndpointAddress, EndpointSubset, Endpoints, ObjectMeta, SubsetPort};
use portway_testkit::battery::PORT;

pub(crate) fn ready(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.pod("web", "pod1a", false);
    lab.start()?;
    lab.start_proxy()?;
    lab.expect("web", &[&format!("!{}", lab.lab.pod("pod1a").ipv4())])?;
    lab.expect_answers(1, &[])?;
    lab.pod("web", "pod1a", true);
    lab.expect_answers(1, &["pod1a"])?;
    lab.pod("web", "pod1a", false);
    lab.expect_answers(1, &[])?;
    lab.pod("web", "pod1a", true);
    lab.expect_answers(1, &["pod1a"])
}

pub(crate) fn pods_come_and_go(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.service("other", 2);
    lab.pod("web", "pod1a", true);
    lab.start()?;
    lab.start_proxy()?;
    lab.expect_answers(1, &["pod1a"])?;
    lab.pod("web", "pod1b", true);
    lab.pod("other", "pod1c", true);
    lab.expect_answers(1, &["pod1a", "pod1b"])?;
    lab.expect_answers(2, &["pod1c"])?;
    // A Pod that is relabelled is another Service's.
    lab.pod("other", "pod1a", true);
    lab.expect_answers(1, &["pod1b"])?;
    lab.expect_answers(2, &["pod1a", "pod1c"])?;
    lab.delete_pod("pod1a");
    lab.expect_answers(2, &["pod1c"])
}

pub(crate) fn mirrored(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service_with("web", 1, |service| service.spec.get_or_insert_default().selector.clear());
    lab.api.put(endpoints(lab, &["pod1a"]));
    lab.start()?;
    lab.start_proxy()?;
    lab.expect_answers(1, &["pod1a"])?;
    lab.api.put(endpoints(lab, &["pod1b", "pod1c"]));
    lab.expect_answers(1, &["pod1b", "pod1c"])?;
    // With a selector, the controllers write the endpoints themselves.
    lab.pod("web", "pod1a", true);
    lab.service("web", 1);
    lab.expect_answers(1, &["pod1a"])?;
    let only_own = || {
        let found = lab.addresses("web");
        if found.len() == 1 { Ok(()) } else { Err(format!("{found:?}")) }
    };
    eventually(WAIT_TIMEOUT, only_own).map_err(|e| format!("the mirrored slice stays: {e}"))
}

pub(crate) fn selector_removed(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.pod("web", "pod1a", true);
    lab.start()?;
    lab.start_proxy()?;
    lab.expect_answers(1, &["pod1a"])?;
    lab.service_with("web", 1, |service| service.spec.get_or_insert_default().selector.clear());
    let one_copy = || {
        let slices = lab.api.objects::<EndpointSlice>();
        let by = |slice: &EndpointSlice| {
            let labels = slice.metadata.as_ref().map(|meta| meta.labels.clone()).unwrap_or_default();
            labels.get("endpointslice.kubernetes.io/managed-by").cloned().unwrap_or_default()
        };
        let managers: Vec<String> = slices.iter().map(by).collect();
        let is_mirrored = managers == ["endpointslicemirroring-controller.k8s.io"];
        if is_mirrored && lab.addresses("web").len() == 1 { Ok(()) } else { Err(format!("{managers:?}")) }
    };
    eventually(WAIT_TIMEOUT, one_copy).map_err(|e| format!("there is not one mirrored slice: {e}"))?;
    lab.expect_answers(1, &["pod1a"])
}

/// An Endpoints object with the addresses of pods.
fn endpoints(lab: &ControllerLab, pods: &[&str]) -> Endpoints {
    let address =
        |pod: &&str| EndpointAddress { ip: lab.lab.pod(pod).ipv4().to_string(), ..Default::default() };
    Endpoints {
        metadata: Some(ObjectMeta {
            name: "web".to_owned(),
            namespace: "default".to_owned(),
            uid: "uid-of-endpoints".to_owned(),
            ..ObjectMeta::default()
        }),
        subsets: vec![EndpointSubset {
            addresses: pods.iter().map(address).collect(),
            ports: vec![SubsetPort {
                name: String::new(),
                port: PORT.into(),
                protocol: "TCP".to_owned(),
                app_protocol: None,
            }],
            ..EndpointSubset::default()
        }],
    }
}
