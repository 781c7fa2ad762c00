//! Tables: what happens, what is done.

use super::*;
use portway_model::api::{ObjectMeta, Service};
use proptest::prelude::*;

const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(400);

/// Runs inputs from the start and prints what each leads to, one line per input.
fn run(kind: Kind, inputs: Vec<Input>) -> Vec<String> {
    let (mut state, outputs) = State::begin(kind);
    let mut lines = vec![print(&outputs)];
    for input in inputs {
        let (next, outputs) = step(state, input);
        state = next;
        lines.push(print(&outputs));
    }
    lines
}

fn print(outputs: &[Output]) -> String {
    let one = |output: &Output| match output {
        Output::Send(Notice::Event(Event::Init(_))) => "init".into(),
        Output::Send(Notice::Event(Event::InitDone(_))) => "done".into(),
        Output::Send(Notice::Event(Event::Apply(object))) => format!("+{}", object.metadata().unwrap().name),
        Output::Send(Notice::Event(Event::Delete { name, .. })) => format!("-{name}"),
        Output::Send(Notice::Rejected(rejected)) => format!("rejected {}", rejected.name),
        Output::Send(Notice::Trouble(trouble)) => format!("trouble {}", trouble.message),
        Output::Send(Notice::Recovered(_)) => "recovered".into(),
        Output::NoteAbsent => "absent".into(),
        Output::Wait { failures, at_least } if at_least.is_zero() => format!("wait {failures}"),
        Output::Wait { failures, at_least } => format!("wait {failures}/{at_least:?}"),
        Output::Ask(Request::List { continue_token: None }) => "list".into(),
        Output::Ask(Request::List { continue_token: Some(token) }) => format!("list {token}"),
        Output::Ask(Request::Watch { version }) => format!("watch {version}"),
    };
    outputs.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn service(name: &str) -> Box<Object> {
    let metadata = ObjectMeta { name: name.into(), ..ObjectMeta::default() };
    Box::new(Object::Service(Service { metadata: Some(metadata), ..Service::default() }))
}

fn item(name: &str) -> Input {
    Input::Item(Ok(service(name)))
}

fn page(continue_token: &str) -> Input {
    Input::PageEnd(ListMeta { resource_version: "10".into(), continue_token: continue_token.into() })
}

fn change(name: &str, version: &str) -> Input {
    Input::Change { version: version.into(), change: Ok(Event::Apply(service(name))) }
}

fn bookmark(version: &str) -> Input {
    Input::Bookmark { version: version.into() }
}

fn fail(what: What, message: &str, lasted: Duration) -> Input {
    Input::Failed { failure: Failure { what, message: message.into(), retry_after: None }, lasted }
}

fn refused() -> Input {
    fail(What::Trouble(Cause::Unreachable), "refused", SHORT)
}

fn closed(lasted: Duration) -> Input {
    Input::Closed { lasted }
}

#[test]
fn pages_are_one_list_and_then_a_watch() {
    let inputs = vec![
        Input::Opened,
        item("a"),
        page("t1"),
        Input::Opened,
        item("b"),
        page(""),
        Input::Opened,
        change("c", "11"),
    ];
    assert_eq!(
        run(Kind::Service, inputs),
        ["list", "init", "+a", "list t1", "", "+b", "done, watch 10", "", "+c"]
    );
}

#[test]
fn an_expired_page_starts_the_list_over() {
    let inputs = vec![
        Input::Opened,
        item("a"),
        page("t1"),
        fail(What::Expired, "410", SHORT),
        Input::Opened,
        item("a"),
        page(""),
    ];
    assert_eq!(
        run(Kind::Service, inputs),
        ["list", "init", "+a", "list t1", "wait 1, list", "init", "+a", "done, watch 10"]
    );
}

#[test]
fn a_page_that_breaks_off_is_asked_for_again() {
    let inputs = vec![Input::Opened, page("t1"), Input::Opened, item("b"), fail(What::Dropped, "eof", SHORT)];
    assert_eq!(run(Kind::Service, inputs), ["list", "init", "list t1", "", "+b", "wait 1, list t1"]);
}

#[test]
fn a_dropped_watch_goes_on_from_the_last_version_without_a_list() {
    let inputs = vec![
        Input::Opened,
        page(""),
        Input::Opened,
        change("a", "11"),
        bookmark("20"),
        fail(What::Dropped, "reset", SHORT),
        Input::Opened,
        change("b", "21"),
        closed(SHORT),
    ];
    assert_eq!(
        run(Kind::Service, inputs),
        ["list", "init", "done, watch 10", "", "+a", "", "wait 1, watch 20", "", "+b", "watch 21"]
    );
}

#[test]
fn an_expired_watch_lists_anew_at_once_but_not_in_a_loop() {
    let expired = || fail(What::Expired, "410", SHORT);
    // As when a server restarts: gone for a while, back, and it has forgotten the version.
    let mut inputs =
        vec![Input::Opened, page(""), Input::Opened, refused(), refused(), Input::Opened, expired()];
    for _ in 0..2 {
        inputs.extend([Input::Opened, page(""), Input::Opened, expired()]);
    }
    inputs.extend([Input::Opened, page(""), Input::Opened, bookmark("20"), expired()]);
    assert_eq!(
        run(Kind::Service, inputs)[6..],
        [
            "recovered",
            "list",
            "init",
            "done, watch 10",
            "",
            "wait 1, list",
            "init",
            "done, watch 10",
            "",
            "wait 2, list",
            "init",
            "done, watch 10",
            "",
            "",
            "list"
        ]
    );
}

#[test]
fn silence_is_a_success_if_it_lasted() {
    let inputs = vec![Input::Opened, page(""), closed(SHORT), closed(SHORT), closed(LONG), closed(SHORT)];
    assert_eq!(
        run(Kind::Service, inputs)[3..],
        ["wait 1, watch 10", "wait 2, watch 10", "watch 10", "wait 1, watch 10"]
    );
}

#[test]
fn trouble_is_told_once_until_it_changes_or_ends() {
    let forbidden = || fail(What::Trouble(Cause::Forbidden), "rbac", SHORT);
    let inputs = vec![refused(), refused(), forbidden(), forbidden(), Input::Opened, page(""), refused()];
    assert_eq!(
        run(Kind::Service, inputs),
        [
            "list",
            "trouble refused, wait 1, list",
            "wait 2, list",
            "trouble rbac, wait 3, list",
            "wait 4, list",
            "recovered, init",
            "done, watch 10",
            "trouble refused, wait 5, watch 10",
        ]
    );
}

#[test]
fn one_broken_connection_is_no_trouble_but_two_are() {
    let dropped = || fail(What::Dropped, "reset", SHORT);
    let inputs =
        vec![Input::Opened, page(""), Input::Opened, dropped(), Input::Opened, dropped(), Input::Opened];
    assert_eq!(
        run(Kind::Service, inputs)[4..],
        ["wait 1, watch 10", "", "trouble reset, wait 2, watch 10", "recovered"]
    );
}

#[test]
fn the_server_may_ask_for_a_longer_wait() {
    let failure = Failure {
        what: What::Trouble(Cause::Overloaded),
        message: "429".into(),
        retry_after: Some(Duration::from_secs(7)),
    };
    let inputs = vec![Input::Failed { failure, lasted: SHORT }];
    assert_eq!(run(Kind::Service, inputs), ["list", "trouble 429, wait 1/7s, list"]);
}

#[test]
fn a_version_that_is_refused_again_and_again_is_given_up() {
    let bad = || fail(What::Trouble(Cause::Refused), "400", SHORT);
    let inputs = vec![Input::Opened, page(""), bad(), bad(), bad(), bad()];
    assert_eq!(
        run(Kind::Service, inputs)[3..],
        ["trouble 400, wait 1, watch 10", "wait 2, watch 10", "wait 3, watch 10", "wait 4, list"]
    );
}

#[test]
fn a_page_that_is_refused_starts_the_list_over() {
    let inputs = vec![Input::Opened, page("t1"), fail(What::Trouble(Cause::Refused), "400", SHORT)];
    assert_eq!(run(Kind::Service, inputs)[2..], ["list t1", "trouble 400, wait 1, list"]);
}

#[test]
fn a_kind_the_server_lacks_is_an_empty_list_only_if_it_may_lack_it() {
    let lacks = || fail(What::Trouble(Cause::NotServed), "404", SHORT);
    assert_eq!(
        run(Kind::ServiceCidr, vec![lacks(), lacks(), Input::Opened]),
        ["list", "absent, init, done, wait 1/600s, list", "init, done, wait 1/600s, list", "init"]
    );
    assert_eq!(run(Kind::Service, vec![lacks()]), ["list", "trouble 404, wait 1, list"]);
}

#[test]
fn an_optional_kind_that_is_forbidden_is_trouble_but_blocks_nothing() {
    let forbidden = || fail(What::Trouble(Cause::Forbidden), "rbac", SHORT);
    assert_eq!(
        run(Kind::ServiceCidr, vec![forbidden(), forbidden()]),
        ["list", "trouble rbac, init, done, wait 1/600s, list", "init, done, wait 1/600s, list"]
    );
    // Once it has been listed it stays.
    let inputs = vec![Input::Opened, page(""), fail(What::Expired, "410", LONG), forbidden()];
    assert_eq!(run(Kind::ServiceCidr, inputs)[3..], ["list", "trouble rbac, wait 1, list"]);
}

#[test]
fn a_bad_object_is_reported_and_its_version_counts() {
    let rejected = || Box::new(Rejected { name: "bad".into(), ..Rejected::default() });
    let inputs = vec![
        Input::Opened,
        Input::Item(Err(rejected())),
        page(""),
        Input::Change { version: "12".into(), change: Err(rejected()) },
        Input::Change { version: String::new(), change: Err(rejected()) },
        closed(SHORT),
    ];
    assert_eq!(
        run(Kind::Service, inputs)[2..],
        ["rejected bad", "done, watch 10", "rejected bad", "rejected bad", "watch 12"]
    );
}

/// Any of the inputs that a phase can see, by number.
fn any_input(state: &State, choice: u8) -> Input {
    let what = match choice / 8 % 6 {
        0 => What::Expired,
        1 => What::Dropped,
        2 => What::Trouble(Cause::NotServed),
        3 => What::Trouble(Cause::Forbidden),
        4 => What::Trouble(Cause::Refused),
        _ => What::Trouble(Cause::Unreachable),
    };
    let lasted = if choice.is_multiple_of(2) { SHORT } else { LONG };
    match (&state.phase, choice % 8) {
        (_, 0 | 1) => fail(what, "x", lasted),
        (Phase::Listing { .. }, 2 | 3) => item("a"),
        (Phase::Listing { .. }, 4) => page("t"),
        (Phase::Listing { .. }, _) => page(""),
        (Phase::Watching { .. }, 2 | 3) => change("b", "20"),
        (Phase::Watching { .. }, 4 | 5) => bookmark("21"),
        (Phase::Watching { .. }, _) => closed(lasted),
    }
}

proptest! {
    #[test]
    fn every_end_asks_once_and_every_list_is_whole(
        choices in proptest::collection::vec(any::<(u8, bool)>(), 0..60), optional: bool,
    ) {
        let kind = if optional { Kind::ServiceCidr } else { Kind::Service };
        let (mut state, _) = State::begin(kind);
        let mut in_list = false;
        let mut opened = false;
        for (choice, open) in choices {
            // A response opens before it says anything, or fails.
            let input = match any_input(&state, choice) {
                Input::Failed { failure, lasted } => Input::Failed { failure, lasted },
                _ if !opened => Input::Opened,
                input => input,
            };
            opened = opened || open;
            if input == Input::Opened { opened = true; }
            let ends = matches!(input, Input::PageEnd(_) | Input::Closed { .. } | Input::Failed { .. });
            let (next, outputs) = step(state, input);
            state = next;
            let asks = outputs.iter().filter(|o| matches!(o, Output::Ask(_))).count();
            prop_assert_eq!(asks, usize::from(ends));
            if ends {
                prop_assert!(matches!(outputs.last(), Some(Output::Ask(_))));
                opened = false;
            }
            for output in &outputs {
                match output {
                    Output::Send(Notice::Event(Event::Init(_))) => in_list = true,
                    Output::Send(Notice::Event(Event::InitDone(_))) => {
                        prop_assert!(in_list);
                        in_list = false;
                    }
                    _ => {}
                }
            }
        }
    }
}
