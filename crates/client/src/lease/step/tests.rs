//! Tables: inputs with their time in seconds, and the expected outputs.

use super::*;

/// A Lease of a holder. `renewed` is by the holder's clock.
fn lease(holder: &str, renewed: i64, transitions: i32) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.into()),
        lease_duration_seconds: Some(15),
        renew_time: Some(MicroTime { seconds: renewed, nanos: 0 }),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let metadata = ObjectMeta { resource_version: renewed.to_string(), ..ObjectMeta::default() };
    Lease { metadata: Some(metadata), spec: Some(spec) }
}

/// An input of the candidate.
#[expect(clippy::large_enum_variant, reason = "there are a few of them, in a test")]
enum Step {
    /// The candidate reads this Lease.
    Reads(Option<Lease>),
    /// The candidate's write succeeds.
    Writes,
    Fails,
    Stops,
}

/// Runs the steps, each at a number of seconds after the start, and prints the output of each.
fn run(steps: Vec<(u64, Step)>) -> Vec<String> {
    let start = Instant::now();
    let (mut state, mut output) = State::begin(Election::new("kube-system", "controllers", "me"), start);
    let mut lines = Vec::new();
    for (seconds, step_input) in steps {
        let now = Now {
            instant: start + Duration::from_secs(seconds),
            wall: MicroTime { seconds: seconds as i64, nanos: 0 },
        };
        let input = match step_input {
            Step::Reads(lease) => Input::Read(lease),
            Step::Writes => match output {
                Output::Create(lease) | Output::Replace(lease) => Input::Written(lease),
                other => panic!("not a write: {other:?}"),
            },
            Step::Fails => Input::Failed,
            Step::Stops => Input::Stop,
        };
        let (next, changes, then) = step(state, input, now);
        state = next;
        let mut line: Vec<String> = changes.iter().map(|change| format!("{change:?}")).collect();
        line.push(print(&then));
        lines.push(line.join(", "));
        output = then;
    }
    lines
}

fn print(output: &Output) -> String {
    let of = |lease: &Lease| {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = |time: Option<MicroTime>| time.map_or(-1, |time| time.seconds);
        format!(
            "{:?} since {} renewed {} transitions {} at {:?}",
            spec.holder_identity.unwrap_or_default(),
            seconds(spec.acquire_time),
            seconds(spec.renew_time),
            spec.lease_transitions.unwrap_or(-1),
            lease.metadata.as_ref().map_or("", |meta| &meta.resource_version),
        )
    };
    match output {
        Output::Create(lease) => format!("create {}", of(lease)),
        Output::Replace(lease) => format!("replace {}", of(lease)),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_lease_that_does_not_exist_is_created_renewed_and_released() {
    let mine = || {
        let mut mine = lease("me", 0, 0);
        mine.spec.as_mut().unwrap().acquire_time = Some(MicroTime { seconds: 0, nanos: 0 });
        Some(mine)
    };
    let steps = vec![
        (0, Step::Reads(None)),
        (0, Step::Writes),
        (2, Step::Reads(mine())),
        (2, Step::Writes),
        (3, Step::Stops),
        (3, Step::Writes),
    ];
    assert_eq!(
        run(steps),
        [
            "create \"me\" since 0 renewed 0 transitions 0 at \"\"",
            "Acquired, Wait",
            "replace \"me\" since 0 renewed 2 transitions 0 at \"0\"",
            "Wait",
            "Lost, replace \"\" since 3 renewed 3 transitions 0 at \"0\"",
            "End",
        ]
    );
}

#[test]
fn a_lease_that_another_holder_renews_is_not_taken() {
    // The holder's clock differs: only a change of the Lease counts, not the time in it.
    let steps = vec![
        (0, Step::Reads(Some(lease("other", 9000, 4)))),
        (14, Step::Reads(Some(lease("other", 9000, 4)))),
        (14, Step::Reads(Some(lease("other", 9002, 4)))),
        (28, Step::Reads(Some(lease("other", 9002, 4)))),
        (29, Step::Reads(Some(lease("other", 9002, 4)))),
        (29, Step::Writes),
    ];
    assert_eq!(
        run(steps),
        [
            "Held { by: \"other\" }, Wait",
            "Wait",
            "Wait",
            "Wait",
            "replace \"me\" since 29 renewed 29 transitions 5 at \"9002\"",
            "Acquired, Wait",
        ]
    );
}

#[test]
fn a_released_lease_is_acquired_at_once() {
    let steps = vec![(0, Step::Reads(Some(lease("", 5, 2)))), (0, Step::Writes)];
    assert_eq!(run(steps), ["replace \"me\" since 0 renewed 0 transitions 3 at \"5\"", "Acquired, Wait"]);
}

#[test]
fn a_restarted_leader_with_the_same_identity_keeps_its_lease() {
    let steps = vec![(0, Step::Reads(Some(lease("me", 5, 2)))), (0, Step::Writes)];
    assert_eq!(run(steps)[0], "replace \"me\" since -1 renewed 0 transitions 2 at \"5\"");
}

#[test]
fn a_leader_that_cannot_renew_in_time_loses_leadership() {
    let steps = vec![
        (0, Step::Reads(None)),
        (0, Step::Writes),
        (2, Step::Fails),
        (9, Step::Fails),
        (10, Step::Fails),
        (12, Step::Fails),
        // The Lease still names this candidate, so it may be renewed.
        (13, Step::Reads(Some(lease("me", 0, 0)))),
        (13, Step::Writes),
    ];
    assert_eq!(
        run(steps)[2..],
        [
            "Wait",
            "Wait",
            "Lost, Wait",
            "Wait",
            "replace \"me\" since -1 renewed 13 transitions 0 at \"0\"",
            "Acquired, Wait",
        ]
    );
}

#[test]
fn a_renewal_counts_from_the_time_when_it_was_sent() {
    // The server commits the renewal at 3 s and another candidate observes it then; the response arrives at 9 s.
    let steps = vec![
        (0, Step::Reads(None)),
        (0, Step::Writes),
        (2, Step::Reads(Some(lease("me", 0, 0)))),
        (9, Step::Writes),
        (11, Step::Fails),
        (12, Step::Fails),
    ];
    assert_eq!(run(steps)[3..], ["Wait", "Wait", "Lost, Wait"]);
}

#[test]
fn a_leader_whose_lease_was_acquired_by_another_loses_leadership() {
    let steps = vec![(0, Step::Reads(None)), (0, Step::Writes), (4, Step::Reads(Some(lease("other", 3, 1))))];
    assert_eq!(run(steps)[2], "Held { by: \"other\" }, Lost, Wait");
}

#[test]
fn a_failed_write_is_retried_after_a_wait() {
    let steps = vec![
        (0, Step::Reads(None)),
        (0, Step::Fails),
        (2, Step::Reads(Some(lease("other", 1, 0)))),
        (3, Step::Stops),
    ];
    assert_eq!(run(steps)[1..], ["Wait", "Held { by: \"other\" }, Wait", "End"]);
}

#[test]
fn candidates_wait_a_random_time_and_a_leader_has_a_deadline() {
    let now = Instant::now();
    let (mut state, _) = State::begin(Election::new("n", "l", "me"), now);
    let seconds = Duration::from_secs_f64;
    assert_eq!((state.wait(0.0, now), state.wait(0.5, now)), (seconds(2.0), seconds(3.2)));
    assert_eq!(state.request_timeout(now), seconds(10.0));
    state.renewed = Some(now);
    assert_eq!(state.wait(0.9, now), seconds(2.0));
    assert_eq!(state.wait(0.9, now + seconds(9.0)), seconds(1.0));
    let overdue = Now { instant: now + seconds(10.0), wall: MicroTime { seconds: 0, nanos: 0 } };
    assert_eq!(step(state.clone(), Input::Tick, overdue).1, [Leadership::Lost]);
    assert_eq!(state.request_timeout(now + seconds(4.0)), seconds(6.0));
}
