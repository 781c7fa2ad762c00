//! Deployments, Nodes and owners, down to packets. The test plays the kubelet: it gives Pods the addresses of the lab's
//! pods and makes them ready.

use crate::cluster::{ControllerLab, NAMESPACE, WAIT_TIMEOUT};
use portway_lab::api::WriteFault;
use portway_lab::{Load, eventually};
use portway_model::api::{
    Condition, Deployment, Lease, LeaseSpec, MicroTime, ObjectMeta, Pod, PodIp, PodStatus, ReplicaSet,
    Resource, Time, complete,
};
use serde_json::json;

/// The flags of all controllers.
const ALL: [&str; 3] = [
    "--bind-address=127.0.0.1:0",
    "--controllers=*,replicaset,deployment,nodelifecycle,garbagecollector",
    "--node-monitor-grace-period=2s",
];

/// Pods of the lab, whose addresses the Pods get.
const HOSTS: [&str; 3] = ["pod1a", "pod1b", "pod1c"];

fn put_deployment(lab: &ControllerLab, replicas: i32, image: &str) {
    let old = lab.api.objects::<Deployment>().pop();
    let mut object = json!({
        "metadata": {"namespace": NAMESPACE, "name": "web", "uid": "uid-of-web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"nodeName": "node1", "containers": [{"name": "main", "image": image}]},
            },
        },
    });
    if let Some(old) = old {
        let meta = old.metadata.unwrap_or_default();
        object["metadata"]["generation"] = (meta.generation + 1).into();
        object["metadata"]["annotations"] = json!(meta.annotations);
        object["status"] = json!(old.status);
    }
    let deployment: Deployment = serde_json::from_value(object).expect("a Deployment");
    lab.api.put(deployment);
}

/// Starts the Pods that have no address, while there are free hosts.
fn run_kubelet(lab: &ControllerLab) {
    let pods = lab.api.objects::<Pod>();
    let address = |pod: &Pod| pod.status.as_ref().map(|status| status.pod_ip.clone()).unwrap_or_default();
    let mut free = HOSTS.map(|host| lab.lab.pod(host).ipv4().to_string()).to_vec();
    free.retain(|ip| !pods.iter().any(|pod| address(pod) == *ip));
    for mut pod in pods.into_iter().filter(|pod| address(pod).is_empty()) {
        let Some(ip) = free.pop() else { return };
        pod.status = Some(PodStatus {
            phase: "Running".to_owned(),
            conditions: vec![Condition {
                kind: "Ready".to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(Time { seconds: 1_700_000_000 }),
                ..Condition::default()
            }],
            pod_ip: ip.clone(),
            pod_ips: vec![PodIp { ip }],
            ..PodStatus::default()
        });
        lab.api.put(pod);
    }
}

/// Waits until the Deployment has rolled out this number of Pods of its newest template.
fn wait_for_rollout(lab: &ControllerLab, replicas: i32) -> Result<(), String> {
    let attempt = || {
        run_kubelet(lab);
        let deployment = lab.api.objects::<Deployment>().pop().ok_or("no Deployment")?;
        let status = deployment.status.unwrap_or_default();
        let generation = deployment.metadata.map_or(0, |meta| meta.generation);
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        let done = counts == [replicas; 3] && status.observed_generation == generation;
        let pods = lab.api.objects::<Pod>().len() as i32;
        if done && pods == replicas { Ok(()) } else { Err(format!("{status:?}, {pods} Pods")) }
    };
    eventually(WAIT_TIMEOUT, attempt).map_err(|e| format!("no rollout of {replicas}: {e}"))
}

pub(crate) fn rollout(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    put_deployment(lab, 2, "v1");
    lab.start_with(&ALL)?;
    lab.start_proxy()?;
    wait_for_rollout(lab, 2)?;
    lab.expect_answers(1, &["pod1b", "pod1c"])?;
    let load = Load::start(lab.lab.client(1), lab.at_cluster_ip(1), 100.0);
    put_deployment(lab, 2, "v2");
    wait_for_rollout(lab, 2)?;
    put_deployment(lab, 3, "v2");
    wait_for_rollout(lab, 3)?;
    lab.expect_answers(1, &HOSTS)?;
    let report = load.stop();
    if !report.is_clean() {
        return Err(format!("connections failed during a rollout and a scale: {report}"));
    }
    put_deployment(lab, 0, "v2");
    wait_for_rollout(lab, 0)?;
    lab.expect_answers(1, &[])
}

pub(crate) fn lost_answers(lab: &mut ControllerLab) -> Result<(), String> {
    put_deployment(lab, 3, "v1");
    lab.api.fail_writes(WriteFault::AnswerLost, 12);
    lab.start_with(&ALL)?;
    wait_for_rollout(lab, 3)?;
    let created = |plural: &str| {
        let post = format!("POST {plural} ");
        lab.writes().iter().filter(|write| write.starts_with(&post)).count()
    };
    let (sets, pods) = (lab.api.objects::<ReplicaSet>().len(), lab.api.objects::<Pod>().len());
    if (sets, pods) != (1, 3) {
        return Err(format!("{sets} ReplicaSets and {pods} Pods after {} creations", created("pods")));
    }
    Ok(())
}

pub(crate) fn killed(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    put_deployment(lab, 2, "v0");
    // A Lease would have to expire in every round.
    let flags = [&ALL[..], &["--leader-elect=false"]].concat();
    lab.start_with(&flags)?;
    wait_for_rollout(lab, 2)?;
    // Each round kills the process after one more write of a rollout.
    for round in 1..=6 {
        let before = lab.writes().len();
        put_deployment(lab, 2, &format!("v{round}"));
        let written = || {
            run_kubelet(lab);
            let writes = lab.writes().len() - before;
            if writes >= round { Ok(()) } else { Err(format!("{writes} writes")) }
        };
        eventually(WAIT_TIMEOUT, written).map_err(|e| e.to_string())?;
        drop(lab.controllers.pop());
        lab.start_with(&flags)?;
        wait_for_rollout(lab, 2)?;
    }
    Ok(())
}

/// The Node renews its Lease, at this time by its clock.
fn renew(lab: &ControllerLab, seconds: i64) {
    lab.api.put(Lease {
        metadata: Some(ObjectMeta {
            name: "node1".to_owned(),
            namespace: "kube-node-lease".to_owned(),
            ..ObjectMeta::default()
        }),
        spec: Some(LeaseSpec { renew_time: Some(MicroTime { seconds, nanos: 0 }), ..LeaseSpec::default() }),
    });
}

pub(crate) fn silent_node(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.pod("web", "pod1a", true);
    renew(lab, 1);
    lab.start_with(&ALL)?;
    lab.start_proxy()?;
    while_renewed(lab, 2).map_err(|e| format!("no answer from a Node that renews its Lease: {e}"))?;
    // It is not renewed any more.
    lab.expect_answers(1, &[])?;
    lab.expect("web", &[&format!("!{}", lab.lab.pod("pod1a").ipv4())])?;
    while_renewed(lab, 100_000).map_err(|e| format!("no answer from a Node that is back: {e}"))
}

/// Waits until the Service is answered, while the Node renews its Lease, at times from this one on.
fn while_renewed(lab: &ControllerLab, from: i64) -> Result<(), String> {
    let mut time = from;
    let attempt = || {
        time += 1;
        renew(lab, time);
        if lab.is_answered(1) { Ok(()) } else { Err(format!("{:?}", lab.addresses("web"))) }
    };
    eventually(WAIT_TIMEOUT, attempt).map_err(|e| e.to_string())
}

pub(crate) fn refused_pod(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.pod("web", "pod1a", true);
    lab.pod("web", "pod1b", true);
    // Its name comes first.
    lab.api.refuse_writes_of("pod1a");
    renew(lab, 1);
    lab.start_with(&ALL)?;
    let ip = |name: &str| lab.lab.pod(name).ipv4().to_string();
    lab.expect("web", &[&ip("pod1a"), &format!("!{}", ip("pod1b"))])
}

pub(crate) fn terminating_namespace(lab: &mut ControllerLab) -> Result<(), String> {
    let put_set = |name: &str, replicas: i32| {
        let set = json!({
            "metadata": {"namespace": NAMESPACE, "name": name, "uid": format!("uid-of-{name}")},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": []}},
            },
        });
        lab.api.put(serde_json::from_value::<ReplicaSet>(set).expect("a ReplicaSet"));
    };
    lab.api.fail_writes(WriteFault::NamespaceTerminating, usize::MAX);
    put_set("web", 2);
    put_set("other", 0);
    lab.start_with(&ALL)?;
    // The controllers do other work meanwhile: each Pod of the second ReplicaSet is adopted and deleted.
    for round in 0..20 {
        lab.pod_at("other", &format!("other-{round}"), "10.244.1.99", false);
        let gone = || match lab.api.objects::<Pod>().len() {
            0 => Ok(()),
            pods => Err(format!("{pods} Pods")),
        };
        eventually(WAIT_TIMEOUT, gone).map_err(|e| format!("left of a ReplicaSet: {e}"))?;
    }
    let creations = lab.writes().iter().filter(|write| write.starts_with("POST pods ")).count();
    match creations {
        1..=3 => Ok(()),
        creations => Err(format!("{creations} attempts to create Pods")),
    }
}

pub(crate) fn owners(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    put_deployment(lab, 2, "v1");
    lab.start_with(&ALL)?;
    wait_for_rollout(lab, 2)?;
    lab.api.delete(Deployment::TYPE, NAMESPACE, "web");
    let gone = || {
        let (sets, pods) = (lab.api.objects::<ReplicaSet>().len(), lab.api.objects::<Pod>().len());
        if sets + pods == 0 { Ok(()) } else { Err(format!("{sets} ReplicaSets, {pods} Pods")) }
    };
    eventually(WAIT_TIMEOUT, gone).map_err(|e| format!("left of a Deployment: {e}"))?;
    lab.api.delete(portway_model::api::Service::TYPE, NAMESPACE, "web");
    let gone = || match lab.api.objects::<complete::EndpointSlice>().len() {
        0 => Ok(()),
        slices => Err(format!("{slices} slices")),
    };
    eventually(WAIT_TIMEOUT, gone).map_err(|e| format!("left of a Service: {e}"))
}
