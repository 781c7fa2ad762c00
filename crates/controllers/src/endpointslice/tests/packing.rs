//! Endpoints are packed into slices with few writes.

use crate::plan::Write;
use crate::testing::*;

/// The lengths of all slices, sorted.
fn lengths(api: &TestApi) -> Vec<usize> {
    let mut lengths: Vec<usize> = api.slices.values().map(|slice| slice.endpoints.len()).collect();
    lengths.sort_unstable();
    lengths
}

fn with_pods(numbers: impl IntoIterator<Item = u16>) -> TestApi {
    let mut api = TestApi::new().with(service("web"));
    for number in numbers {
        api.apply(pod("web", number, "node-a"));
    }
    api
}

fn operations(plans: &[crate::plan::Plan]) -> Vec<&'static str> {
    plans.iter().flat_map(|plan| &plan.writes).map(|reasoned| reasoned.write.operation()).collect()
}

#[test]
fn the_first_write_fills_slices() {
    for (pods, expected) in
        [(0, &[0][..]), (1, &[1]), (100, &[100]), (101, &[1, 100]), (250, &[50, 100, 100])]
    {
        let mut api = with_pods(0..pods);
        let plans = api.write_all("web");
        assert_eq!(lengths(&api), expected, "{pods} Pods");
        assert_eq!(operations(&plans), vec!["create"; expected.len()], "{pods} Pods");
        let figures = plans[0].figures;
        assert_eq!((figures.endpoints, figures.slices), (usize::from(pods), expected.len()));
        assert_eq!((figures.needed, figures.added), (expected.len(), usize::from(pods)));
    }
}

#[test]
fn a_service_with_twenty_thousand_pods_has_two_hundred_slices() {
    let mut api = with_pods(0..20_000);
    let plans = api.write_all("web");
    assert_eq!(operations(&plans).len(), 200);
    // One Pod that changes is one write.
    api.apply(pod_with("web", 12_345, |pod| {
        pod.status.get_or_insert_default().conditions = vec![ready(false, 3000)];
    }));
    assert_eq!(operations(&api.write_all("web")), ["update"]);
}

#[test]
fn one_pod_more_or_less_is_one_write() {
    let mut api = with_pods(0..250);
    api.write_all("web");
    for (change, expected, writes) in [
        (Some(300), &[51, 100, 100][..], &["update"][..]),
        (None, &[51, 99, 100], &["update"]),
        // The slice with the most endpoints that has room.
        (Some(301), &[51, 100, 100], &["update"]),
    ] {
        match change {
            Some(number) => _ = api.apply(pod("web", number, "node-a")),
            None => _ = api.delete::<portway_api::Pod>("web-00000"),
        }
        let plans = api.write_all("web");
        assert_eq!(lengths(&api), expected);
        assert_eq!(operations(&plans), writes);
        assert_eq!(api.addresses("web").len(), expected.iter().sum::<usize>());
    }
}

#[test]
fn a_slice_that_is_written_anyway_takes_new_endpoints() {
    let mut api = with_pods(0..150);
    api.write_all("web");
    // One goes from the full slice, two come: both fit into the two slices, of which only one is written if it can be.
    api.delete::<portway_api::Pod>("web-00000");
    api.apply(pod("web", 200, "node-a"));
    assert_eq!(operations(&api.write_all("web")), ["update"]);
    assert_eq!(lengths(&api), [50, 100]);
}

#[test]
fn slices_are_not_repacked_and_empty_ones_are_deleted() {
    let mut api = with_pods(0..200);
    api.write_all("web");
    for number in 1..100_u16 {
        api.delete::<portway_api::Pod>(&format!("web-{number:05}"));
    }
    assert_eq!(operations(&api.write_all("web")), ["update"]);
    assert_eq!(lengths(&api), [1, 100]);
    api.delete::<portway_api::Pod>("web-00000");
    assert_eq!(operations(&api.write_all("web")), ["delete"]);
    assert_eq!(lengths(&api), [100]);
}

#[test]
fn the_last_slice_stays_without_endpoints_and_is_used_again() {
    let mut api = with_pods(0..1);
    api.write_all("web");
    api.delete::<portway_api::Pod>("web-00000");
    // One write, not a deletion and a creation.
    assert_eq!(operations(&api.write_all("web")), ["update"]);
    let slice = api.only_slice();
    assert_eq!((slice.endpoints.len(), slice.ports.len()), (0, 0));
    api.apply(pod("web", 1, "node-a"));
    assert_eq!(operations(&api.write_all("web")), ["update"]);
    assert_eq!(lengths(&api), [1]);
}

#[test]
fn other_ports_are_written_over_the_slice() {
    let mut api = with_pods(0..3);
    api.write_all("web");
    api.apply(service_with("web", |spec| spec.ports[0].target_port = Some(9090.into())));
    assert_eq!(operations(&api.write_all("web")), ["update"]);
    assert_eq!(api.only_slice().ports[0].port, Some(9090));
}

#[test]
fn no_write_removes_an_endpoint_that_a_later_one_adds() {
    let mut api = with_pods(0..120);
    api.write_all("web");
    api.apply(service_with("web", |spec| spec.ports[0].target_port = Some(9090.into())));
    let plan = api.plan("web");
    let order: Vec<usize> = plan
        .writes
        .iter()
        .map(|reasoned| match &reasoned.write {
            Write::Create(_) => 0,
            Write::Replace(_) | Write::Change(_) => 1,
            Write::Delete { .. } => 2,
        })
        .collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn names_are_the_same_when_a_plan_is_made_again() {
    let api = with_pods(0..250);
    let names = |plan: crate::plan::Plan| -> Vec<_> { plan.writes.iter().map(|r| r.write.key()).collect() };
    let first = names(api.plan("web"));
    assert_eq!(first, names(api.plan("web")), "a lost answer does not lead to a second slice");
    let distinct: std::collections::BTreeSet<_> = first.iter().collect();
    assert_eq!(distinct.len(), 3);
    // Another Service of the same name has other slices.
    let mut other = service("web");
    other.metadata.get_or_insert_default().uid = "another".to_owned();
    assert_ne!(first, names(with_pods(0..250).with(other).plan("web")));
}
