//! The controllers with an API server that refuses writes, loses answers, and goes away; and with the proxy:
//! a Pod becomes ready, and a packet arrives.

mod cluster;
mod faults;
mod leaders;
mod packets;
mod takeover;
mod workloads;

use cluster::ControllerLab;
use portway_testkit::harness::{self, Failed, Test};
use std::process::ExitCode;

type Run = fn(&mut ControllerLab) -> Result<(), String>;

fn main() -> ExitCode {
    let table: [(&'static str, Run); 22] = [
        ("a_pod_becomes_ready_and_a_packet_arrives", packets::ready),
        ("a_service_follows_its_pods", packets::pods_come_and_go),
        ("endpoints_that_a_person_writes_receive_packets", packets::mirrored),
        ("a_selector_that_is_removed_leaves_one_copy_of_the_endpoints", packets::selector_removed),
        ("refused_writes_are_repeated_until_they_succeed", faults::refused),
        ("a_lost_answer_does_not_lead_to_a_second_slice", faults::lost_answers),
        ("an_outage_in_a_burst_of_changes_loses_nothing", faults::outage),
        ("a_compacted_history_in_a_burst_of_changes_loses_nothing", faults::compaction),
        ("a_leader_that_is_killed_after_any_write_leaves_a_state_that_converges", faults::killed),
        ("failed_writes_are_reported_as_events_and_in_the_log", faults::reported),
        ("of_two_processes_one_writes", leaders::one_writes),
        ("a_leader_that_stops_hands_over_at_once", leaders::hand_over),
        ("slices_of_kube_controller_manager_are_not_rewritten", takeover::unchanged),
        ("pages_have_the_names_of_kube_controller_manager", takeover::pages),
        ("mistakes_in_flags_are_reported_together", takeover::mistakes),
        ("a_deployment_is_rolled_out_and_scaled_without_a_failed_connection", workloads::rollout),
        ("lost_answers_lead_to_no_second_pod_or_replica_set", workloads::lost_answers),
        ("a_process_that_is_killed_in_a_rollout_leaves_a_state_that_converges", workloads::killed),
        ("a_silent_node_loses_its_endpoints_until_it_is_back", workloads::silent_node),
        ("one_refused_pod_does_not_keep_the_others_of_its_node_ready", workloads::refused_pod),
        ("a_namespace_that_is_being_deleted_is_not_filled", workloads::terminating_namespace),
        ("owned_objects_are_deleted_with_their_owners", workloads::owners),
    ];
    let test = |(name, run): (&'static str, Run)| {
        Test::new(name, move || {
            let mut lab = ControllerLab::new(name)?;
            run(&mut lab).map_err(|e| Failed::from(format!("{e}\n{}", lab.log())))
        })
    };
    harness::run_in(portway_lab::enter, table.map(test).into())
}
