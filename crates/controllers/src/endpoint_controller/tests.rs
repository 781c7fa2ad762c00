//! Tests of `endpoint_controller`: which changes lead to work, and the times that are written.

use super::*;
use crate::names::TRIGGER_TIME;
use crate::plan::{Object, Write};
use crate::testing::*;
use clap::Parser;

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    options: Options,
}

fn controller(kind: Kind) -> EndpointController {
    EndpointController::new(kind, &Flags::parse_from(["controller"]).options)
}

/// The time in the first write of a plan.
fn written(plan: &Plan) -> Option<String> {
    let meta = match &plan.writes.first()?.write {
        Write::Create(Object::Slice(slice)) | Write::Replace(Object::Slice(slice)) => slice.metadata.clone(),
        Write::Create(Object::Endpoints(endpoints)) | Write::Replace(Object::Endpoints(endpoints)) => {
            endpoints.metadata.clone()
        }
        _ => None,
    };
    meta?.annotations.get(TRIGGER_TIME).cloned()
}

#[test]
fn the_trigger_time_is_that_of_the_service_first_and_then_of_the_earliest_change() {
    for kind in [Kind::Slices, Kind::Endpoints] {
        let mut api = TestApi::new();
        let mut controller = controller(kind);
        let mut touched = api.apply(service("web"));
        touched.extend(api.apply(pod("web", 1, "node-a")));
        touched.iter().for_each(|touched| _ = controller.delay(touched, &api.cluster));
        let sync = |api: &mut TestApi, controller: &mut EndpointController, fails: bool| {
            let plan = controller.decide(&api.cluster, &key("web"));
            if !fails {
                plan.writes.iter().for_each(|r| api.write(&r.write).expect("no conflict"));
                controller.succeeded(&key("web"));
            }
            written(&plan)
        };
        let at = |seconds| Some(portway_api::time::format_rfc3339(seconds));
        assert_eq!(sync(&mut api, &mut controller, false), at(1000), "the Service's creation");
        for (number, seconds) in [(2, 5000), (3, 4000)] {
            let touched = api.apply(pod_with("web", number, |pod| {
                pod.status.get_or_insert_default().conditions = vec![ready(true, seconds)];
            }));
            touched.iter().for_each(|touched| _ = controller.delay(touched, &api.cluster));
        }
        assert_eq!(sync(&mut api, &mut controller, true), at(4000), "the earliest of two changes");
        assert_eq!(sync(&mut api, &mut controller, false), at(4000), "also after a failure");
        let touched = api.delete::<portway_api::Pod>("web-00001");
        touched.iter().for_each(|touched| _ = controller.delay(touched, &api.cluster));
        assert_eq!(sync(&mut api, &mut controller, false), None, "a deletion has no time");
    }
}

#[test]
fn each_controller_works_on_the_changes_that_concern_it() {
    use Cause::{Endpoints, Node, Pod, Service, ServiceDeleted, Slice};
    let pod = Pod { ready_changed: None };
    for (by, expected) in [
        (Service, [true, true, true]),
        (ServiceDeleted, [true, true, true]),
        (pod, [true, true, false]),
        (Node, [true, false, false]),
        (Slice(Maintainer::Slices), [true, false, false]),
        (Slice(Maintainer::Mirroring), [true, false, true]),
        (Endpoints, [true, true, true]),
        (Cause::ReplicaSet, [false; 3]),
        (Cause::Ownership, [false; 3]),
    ] {
        for (kind, expected) in Kind::ALL.into_iter().zip(expected) {
            let delay = controller(kind).delay(&Touched { key: key("web"), by }, &Cluster::default());
            assert_eq!(delay.is_some(), expected, "{kind:?} {by:?}");
        }
    }
}

#[test]
fn a_slice_that_another_process_changed_is_repaired_after_a_second() {
    let touched = Touched { key: key("web"), by: Cause::Slice(Maintainer::Slices) };
    let delay = controller(Kind::Slices).delay(&touched, &Cluster::default());
    assert_eq!(delay, Some(Duration::from_secs(1)));
}

#[test]
fn totals_are_those_of_all_services() {
    let mut api = TestApi::new().with(service("web")).with(service("db"));
    let mut controller = controller(Kind::Slices);
    for number in 0..150 {
        api.apply(pod("web", number, "node-a"));
    }
    for name in ["web", "db", "web"] {
        controller.decide(&api.cluster, &key(name));
    }
    let total = controller.total();
    assert_eq!((total.endpoints, total.slices, total.needed), (150, 3, 3));
    api.delete::<portway_api::Service>("web");
    controller.decide(&api.cluster, &key("web"));
    assert_eq!((controller.total().endpoints, controller.total().slices), (0, 1));
}

#[test]
fn a_change_during_a_write_keeps_its_time() {
    let (mut api, mut controller) = (TestApi::new(), controller(Kind::Slices));
    let change = |api: &mut TestApi, controller: &mut EndpointController, number, seconds| {
        let touched = api.apply(pod_with("web", number, |pod| {
            pod.status.get_or_insert_default().conditions = vec![ready(true, seconds)];
        }));
        touched.iter().for_each(|touched| _ = controller.delay(touched, &api.cluster));
    };
    let touched = api.apply(service("web"));
    touched.iter().for_each(|touched| _ = controller.delay(touched, &api.cluster));
    controller.decide(&api.cluster, &key("web"));
    // It arrives before the writes of the first plan have ended.
    change(&mut api, &mut controller, 1, 6000);
    controller.succeeded(&key("web"));
    let plan = controller.decide(&api.cluster, &key("web"));
    assert_eq!(written(&plan), Some(portway_api::time::format_rfc3339(6000)));
}

#[test]
fn only_the_endpoints_object_that_a_deleted_service_left_is_deleted() {
    let (mut api, mut controller) = (TestApi::new(), controller(Kind::Endpoints));
    api.apply(service_with("web", |spec| spec.selector.clear()));
    api.apply(endpoints_object("web", &["192.0.2.1"], &[]));
    let touched = api.delete::<portway_api::Service>("web");
    touched.iter().for_each(|touched| _ = controller.delay(touched, &api.cluster));
    assert_eq!(controller.decide(&api.cluster, &key("web")).writes.len(), 1);
    // Another process has deleted it, and a person has created another one since.
    let mut other = endpoints_object("web", &["192.0.2.2"], &[]);
    other.metadata.get_or_insert_default().uid = "another".to_owned();
    api.apply(other);
    assert_eq!(controller.decide(&api.cluster, &key("web")).writes, []);
}
