//! From any state, the controllers reach a fixed point in bounded writes and then write nothing; conflicts and lost
//! answers included.

use crate::cluster::Cluster;
use crate::endpointslice::{Context, reconcile};
use crate::plan::{Plan, Write};
use crate::testing::*;
use portway_api::{Event, Pod, Time};
use proptest::prelude::*;

const CONTEXT: Context = Context { max_endpoints: 3, max_mirrored: 1000, trigger: None };

fn plan(cluster: &Cluster) -> Plan {
    reconcile(cluster, &key("web"), CONTEXT)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Apply {
        pod: u16,
        ready: bool,
        terminating: bool,
        port: i32,
    },
    Delete {
        pod: u16,
    },
    Port {
        target: i32,
    },
    Families {
        both: bool,
    },
    /// The first writes of a plan succeed; the answer to the last of them is lost, and only its event arrives.
    Partly {
        writes: usize,
        lost: bool,
    },
    Tamper {
        with: u8,
    },
    /// The process is replaced by another one, which lists everything.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0u16..12;
    let step = prop_oneof![
        5 => (pod.clone(), any::<bool>(), any::<bool>(), 1i32..3)
            .prop_map(|(pod, ready, terminating, port)| Step::Apply { pod, ready, terminating, port }),
        3 => pod.prop_map(|pod| Step::Delete { pod }),
        1 => (1i32..3).prop_map(|target| Step::Port { target }),
        1 => any::<bool>().prop_map(|both| Step::Families { both }),
        4 => (0usize..4, any::<bool>()).prop_map(|(writes, lost)| Step::Partly { writes, lost }),
        2 => any::<u8>().prop_map(|with| Step::Tamper { with }),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

struct Simulation {
    api: TestApi,
    target: i32,
    both: bool,
    pods: std::collections::BTreeMap<u16, Pod>,
}

impl Simulation {
    fn service(&self) -> portway_api::Service {
        let (target, both) = (self.target, self.both);
        service_with("web", |spec| {
            spec.ports = vec![port("named", 80, "http".into()), port("number", 81, target.into())];
            if both {
                spec.ip_families.push("IPv6".to_owned());
            }
        })
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Apply { pod: number, ready: is_ready, terminating, port } => {
                let pod = pod_with("web", number, |pod| {
                    pod.spec.get_or_insert_default().containers = vec![container(&[("http", port)])];
                    pod.status.get_or_insert_default().conditions = vec![ready(is_ready, 0)];
                    pod.metadata.get_or_insert_default().deletion_timestamp =
                        terminating.then_some(Time { seconds: 1 });
                });
                self.pods.insert(number, pod.clone());
                self.api.apply(pod);
            }
            Step::Delete { pod } => {
                self.pods.remove(&pod);
                self.api.delete::<Pod>(&format!("web-{pod:05}"));
            }
            Step::Port { target } => {
                self.target = target;
                self.api.apply(self.service());
            }
            Step::Families { both } => {
                self.both = both;
                self.api.apply(self.service());
            }
            Step::Partly { writes, lost } => self.write_partly(writes, lost),
            Step::Tamper { with } => {
                let Some(slice) = self.api.slices.keys().nth(usize::from(with) % 5).cloned() else {
                    return;
                };
                self.api.tamper(&slice, |slice| match with % 4 {
                    0 => slice.endpoints.clear(),
                    1 => slice.metadata.get_or_insert_default().labels.retain(|name, _| name.contains('/')),
                    2 => slice.ports.clear(),
                    _ => slice.endpoints.iter_mut().for_each(|e| e.conditions = None),
                });
            }
            Step::Restart => {
                let mut api = TestApi::new();
                std::mem::swap(&mut api.slices, &mut self.api.slices);
                std::mem::swap(&mut api.endpoints, &mut self.api.endpoints);
                api.continue_after(&self.api);
                let slices: Vec<_> = api.slices.values().cloned().collect();
                slices.into_iter().for_each(|slice| _ = api.event(Event::Apply(slice)));
                api.apply(self.service());
                self.pods.values().for_each(|pod| _ = api.apply(pod.clone()));
                self.api = api;
            }
        }
    }

    fn write_partly(&mut self, writes: usize, lost: bool) {
        let plan = plan(&self.api.cluster);
        let count = plan.writes.len().min(writes);
        for (n, reasoned) in plan.writes.iter().take(count).enumerate() {
            if lost && n + 1 == count {
                let before = self.api.slices.clone();
                self.api.store_only(&reasoned.write);
                // Later the events arrive.
                let after = self.api.slices.clone();
                if n % 2 == 0 {
                    self.api.replay(&before, &after);
                }
            } else {
                self.write(&reasoned.write);
            }
        }
    }

    /// Writes as the runner does: after a conflict, the object is read.
    fn write(&mut self, write: &Write) {
        if self.api.write(write).is_err() {
            match self.api.slices.get(&write.key()).cloned() {
                Some(slice) => self.api.cluster.slice_written(slice, &mut Vec::new()),
                None => self.api.cluster.slice_missing(&write.key()),
            }
        }
    }

    /// Writes until there is nothing to write, after the watch has caught up.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        let slices: Vec<_> = self.api.slices.values().cloned().map(Event::Apply).collect();
        for event in std::iter::once(Event::Init).chain(slices).chain([Event::InitDone]) {
            self.api.event(event);
        }
        for _ in 0..60 {
            let plan = plan(&self.api.cluster);
            let Some(first) = plan.writes.first() else { return Ok(()) };
            self.write(&first.write);
        }
        Err(TestCaseError::fail(format!("no fixed point: {:#?}", plan(&self.api.cluster))))
    }

    /// What is in the slices: address, ports and conditions, once for each.
    fn check(&self) -> Result<(), TestCaseError> {
        let mut found: Vec<String> = Vec::new();
        for slice in self.api.slices.values() {
            prop_assert!(slice.endpoints.len() <= CONTEXT.max_endpoints);
            for endpoint in &slice.endpoints {
                let ports: Vec<_> = slice.ports.iter().map(|p| (p.name.clone(), p.port)).collect();
                found.push(format!("{} {ports:?} {:?}", endpoint.addresses[0], endpoint.conditions));
            }
        }
        found.sort();
        let mut fresh = TestApi::new().with(self.service());
        self.pods.values().for_each(|pod| _ = fresh.apply(pod.clone()));
        fresh.write_until_done_with(|cluster, _| plan(cluster), "web");
        let mut expected: Vec<String> = Vec::new();
        for slice in fresh.slices.values() {
            for endpoint in &slice.endpoints {
                let ports: Vec<_> = slice.ports.iter().map(|p| (p.name.clone(), p.port)).collect();
                expected.push(format!("{} {ports:?} {:?}", endpoint.addresses[0], endpoint.conditions));
            }
        }
        expected.sort();
        prop_assert_eq!(found, expected, "the same as from scratch");
        Ok(())
    }
}

impl TestApi {
    /// Versions go on after those of another api.
    fn continue_after(&mut self, other: &TestApi) {
        self.advance_to(other.revision());
    }

    /// Stores a write without an answer.
    fn store_only(&mut self, write: &Write) {
        let mut other = TestApi::default();
        std::mem::swap(&mut other.slices, &mut self.slices);
        other.advance_to(self.revision());
        // A conflict changes nothing.
        _ = other.write(write);
        std::mem::swap(&mut other.slices, &mut self.slices);
        self.advance_to(other.revision());
    }

    /// Sends the events of the difference between two states.
    fn replay(
        &mut self,
        before: &std::collections::BTreeMap<crate::key::Key, portway_api::complete::EndpointSlice>,
        after: &std::collections::BTreeMap<crate::key::Key, portway_api::complete::EndpointSlice>,
    ) {
        for (key, slice) in after {
            if before.get(key) != Some(slice) {
                self.event(Event::Apply(slice.clone()));
            }
        }
        for key in before.keys().filter(|key| !after.contains_key(*key)) {
            self.delete::<portway_api::complete::EndpointSlice>(key.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_state_leads_to_the_right_slices_in_bounded_writes(steps in steps()) {
        let mut simulation =
            Simulation { api: TestApi::new(), target: 1, both: false, pods: Default::default() };
        simulation.api.apply(simulation.service());
        for step in steps {
            simulation.step(step);
        }
        simulation.settle()?;
        simulation.check()?;
    }
}
