//! Tables: what happens after how many seconds, and what is done.

use super::*;

/// A Lease of a holder, renewed at a time that only its own clock knows.
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

/// What happens.
#[expect(clippy::large_enum_variant, reason = "there are a few of them, in a test")]
enum Act {
    /// The candidate's time comes and it reads this.
    Reads(Option<Lease>),
    /// Its write succeeds.
    Writes,
    Fails,
    Stops,
}

/// Runs acts, each so many seconds after the start, and prints what follows.
fn run(acts: Vec<(u64, Act)>) -> Vec<String> {
    let start = Instant::now();
    let (mut state, mut output) = State::begin(Election::new("kube-system", "controllers", "me"));
    let mut lines = Vec::new();
    for (seconds, act) in acts {
        let now = Now {
            instant: start + Duration::from_secs(seconds),
            wall: MicroTime { seconds: seconds as i64, nanos: 0 },
        };
        let input = match act {
            Act::Reads(lease) => Input::Read(lease),
            Act::Writes => match output {
                Output::Create(lease) | Output::Replace(lease) => Input::Written(lease),
                other => panic!("nothing is written: {other:?}"),
            },
            Act::Fails => Input::Failed,
            Act::Stops => Input::Stop,
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
    let acts = vec![
        (0, Act::Reads(None)),
        (0, Act::Writes),
        (2, Act::Reads(mine())),
        (2, Act::Writes),
        (3, Act::Stops),
        (3, Act::Writes),
    ];
    assert_eq!(
        run(acts),
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
fn another_holder_is_waited_for_as_long_as_it_is_seen_to_renew() {
    // Its clock is far behind, or far ahead: only that the Lease changes counts.
    let acts = vec![
        (0, Act::Reads(Some(lease("other", 9000, 4)))),
        (14, Act::Reads(Some(lease("other", 9000, 4)))),
        (14, Act::Reads(Some(lease("other", 9002, 4)))),
        (28, Act::Reads(Some(lease("other", 9002, 4)))),
        (29, Act::Reads(Some(lease("other", 9002, 4)))),
        (29, Act::Writes),
    ];
    assert_eq!(
        run(acts),
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
fn a_released_lease_is_taken_at_once() {
    let acts = vec![(0, Act::Reads(Some(lease("", 5, 2)))), (0, Act::Writes)];
    assert_eq!(run(acts), ["replace \"me\" since 0 renewed 0 transitions 3 at \"5\"", "Acquired, Wait"]);
}

#[test]
fn a_candidate_that_comes_back_under_its_name_goes_on() {
    let acts = vec![(0, Act::Reads(Some(lease("me", 5, 2)))), (0, Act::Writes)];
    assert_eq!(run(acts)[0], "replace \"me\" since -1 renewed 0 transitions 2 at \"5\"");
}

#[test]
fn a_leader_that_cannot_renew_in_time_has_lost() {
    let acts = vec![
        (0, Act::Reads(None)),
        (0, Act::Writes),
        (2, Act::Fails),
        (9, Act::Fails),
        (10, Act::Fails),
        (12, Act::Fails),
        // It is its own Lease still, and may be renewed.
        (13, Act::Reads(Some(lease("me", 0, 0)))),
        (13, Act::Writes),
    ];
    assert_eq!(
        run(acts)[2..],
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
fn a_leader_whose_lease_was_taken_has_lost() {
    let acts = vec![(0, Act::Reads(None)), (0, Act::Writes), (4, Act::Reads(Some(lease("other", 3, 1))))];
    assert_eq!(run(acts)[2], "Held { by: \"other\" }, Lost, Wait");
}

#[test]
fn a_lost_race_to_write_is_an_attempt_like_any_other() {
    let acts = vec![
        (0, Act::Reads(None)),
        (0, Act::Fails),
        (2, Act::Reads(Some(lease("other", 1, 0)))),
        (3, Act::Stops),
    ];
    assert_eq!(run(acts)[1..], ["Wait", "Held { by: \"other\" }, Wait", "End"]);
}

#[test]
fn followers_spread_their_attempts_and_a_leader_has_a_deadline() {
    let (mut state, _) = State::begin(Election::new("n", "l", "me"));
    let seconds = Duration::from_secs_f64;
    assert_eq!((state.wait(0.0), state.wait(0.5)), (seconds(2.0), seconds(3.2)));
    let now = Instant::now();
    assert_eq!(state.patience(now), seconds(10.0));
    state.renewed = Some(now);
    assert_eq!(state.wait(0.9), seconds(2.0));
    assert_eq!(state.patience(now + seconds(4.0)), seconds(6.0));
}
