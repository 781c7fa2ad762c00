//! Tables: inputs, and the outputs of each.

mod outages;

use super::*;
use portway_api::{ObjectMeta, Resource, Service};
use proptest::prelude::*;

const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(400);

/// How the server behaves.
#[derive(Clone, Copy)]
enum Server {
    /// It streams initial lists.
    Streams,
    /// It is known not to stream.
    Lists,
    /// Like `Lists`, and the resource is optional.
    ListsOptional,
}

/// Processes inputs from the initial state and prints the outputs, one line per input.
fn run(server: Server, inputs: Vec<Input<Service>>) -> Vec<String> {
    let (mut state, request) = State::begin(
        Service::TYPE,
        matches!(server, Server::ListsOptional),
        matches!(server, Server::Streams),
    );
    let mut lines = vec![print(&[Output::Request(request)])];
    for input in inputs {
        let (next, outputs) = step(state, input);
        state = next;
        lines.push(print(&outputs));
    }
    lines
}

fn print(outputs: &[Output<Service>]) -> String {
    let one = |output: &Output<Service>| match output {
        Output::Send(Notice::Event(Event::Init)) => "init".into(),
        Output::Send(Notice::Event(Event::InitDone)) => "done".into(),
        Output::Send(Notice::Event(Event::Apply(object))) => format!("+{}", object.metadata().unwrap().name),
        Output::Send(Notice::Event(Event::Delete { name, .. })) => format!("-{name}"),
        Output::Send(Notice::Rejected(rejected)) => format!("rejected {}", rejected.name),
        Output::Send(Notice::Outage(outage)) => format!("outage {}", outage.message),
        Output::Send(Notice::Recovered(_)) => "recovered".into(),
        Output::LogAbsent(refusal) => {
            format!("absent {}", refusal.as_deref().unwrap_or_default()).trim_end().into()
        }
        Output::DisableStreaming => "no streaming".into(),
        Output::DropFieldSelector => "drop fields".into(),
        Output::LogNoStream(message) => format!("no stream ({message})"),
        Output::Wait { failures, at_least } if at_least.is_zero() => format!("wait {failures}"),
        Output::Wait { failures, at_least } => format!("wait {failures}/{at_least:?}"),
        Output::Request(Request::Stream { version }) => format!("stream {version}").trim_end().into(),
        Output::Request(Request::CachedList { version }) => format!("list {version}"),
        Output::Request(Request::Page { continue_token: None }) => "pages".into(),
        Output::Request(Request::Page { continue_token: Some(token) }) => format!("page {token}"),
        Output::Request(Request::Watch { version }) => format!("watch {version}"),
    };
    outputs.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn service(name: &str) -> Service {
    let metadata = ObjectMeta { name: name.into(), ..ObjectMeta::default() };
    Service { metadata: Some(metadata), ..Service::default() }
}

fn item(name: &str) -> Input<Service> {
    Input::Item(Ok(service(name)))
}

fn page(continue_token: &str) -> Input<Service> {
    Input::PageEnd(ListMeta { resource_version: "10".into(), continue_token: continue_token.into() })
}

fn change(name: &str, version: &str) -> Input<Service> {
    Input::Change { version: version.into(), change: Ok(Event::Apply(service(name))) }
}

fn bookmark(version: &str) -> Input<Service> {
    Input::Bookmark { version: version.into() }
}

fn fail(kind: FailureKind, message: &str, lasted: Duration) -> Input<Service> {
    Input::Failed { failure: Failure { kind, message: message.into(), retry_after: None }, lasted }
}

fn unreachable() -> Input<Service> {
    fail(FailureKind::Outage(OutageReason::Unreachable), "unreachable", SHORT)
}

fn closed(lasted: Duration) -> Input<Service> {
    Input::Closed { lasted }
}

/// A list from the cache fails, so that pages follow.
fn only_pages() -> Vec<Input<Service>> {
    vec![fail(FailureKind::Expired, "too new", SHORT)]
}

#[test]
fn a_stream_is_a_list_that_continues_as_a_watch() {
    let end = Input::InitialEnd { version: "10".into() };
    let inputs = vec![
        Input::Opened,
        change("a", "3"),
        change("b", "9"),
        end,
        change("c", "11"),
        fail(FailureKind::Dropped, "reset", SHORT),
        Input::Opened,
    ];
    assert_eq!(
        run(Server::Streams, inputs),
        ["stream", "init", "+a", "+b", "done", "+c", "wait 1, watch 11", ""]
    );
}

#[test]
fn a_broken_stream_starts_over_and_does_not_resume_from_the_versions_of_its_objects() {
    let dropped = || fail(FailureKind::Dropped, "reset", LONG);
    let inputs = vec![Input::Opened, change("a", "3"), dropped(), Input::Opened, change("a", "3"), dropped()];
    assert_eq!(
        run(Server::Streams, inputs),
        ["stream", "init", "+a", "wait 1, stream", "init", "+a", "outage reset, wait 2, list 0"]
    );
}

#[test]
fn a_server_that_refuses_to_stream_is_listed_at_once_and_not_asked_to_stream_again() {
    let invalid = || fail(FailureKind::Invalid, "422", SHORT);
    let inputs = vec![
        invalid(),
        Input::Opened,
        item("a"),
        page(""),
        Input::Opened,
        bookmark("20"),
        fail(FailureKind::Expired, "410", LONG),
    ];
    assert_eq!(
        run(Server::Streams, inputs),
        ["stream", "no streaming, list 0", "init", "+a", "done, watch 10", "", "", "list 20"]
    );
}

#[test]
fn a_server_that_ignores_send_initial_events_is_listed() {
    let opened = || vec![Input::Opened, change("a", "3")];
    let mut inputs = opened();
    inputs.extend([bookmark("20"), Input::Opened, item("a"), page("")]);
    assert_eq!(
        run(Server::Streams, inputs),
        ["stream", "init", "+a", "no streaming, list 0", "init", "+a", "done, watch 10"]
    );
    let mut inputs = opened();
    inputs.push(closed(SHORT));
    assert_eq!(run(Server::Streams, inputs)[3..], ["wait 1, list 0"]);
}

#[test]
fn one_silent_stream_is_a_list_and_two_in_a_row_end_streaming() {
    let expired = || fail(FailureKind::Expired, "410", LONG);
    let mut inputs = vec![Input::Opened, Input::Silent, Input::Opened, page(""), Input::Opened, expired()];
    inputs.extend([Input::Opened, Input::InitialEnd { version: "11".into() }, expired()]);
    inputs.extend([Input::Opened, Input::Silent, Input::Opened, page(""), Input::Opened, expired()]);
    inputs.extend([Input::Opened, Input::Silent]);
    assert_eq!(
        run(Server::Streams, inputs),
        [
            "stream",
            "init",
            "list 0",
            "init",
            "done, watch 10",
            "",
            "stream 10",
            "init",
            "done",
            "stream 11",
            "init",
            "list 11",
            "init",
            "done, watch 10",
            "",
            "stream 10",
            "init",
            "no streaming, list 10",
        ]
    );
}

#[test]
fn a_stream_that_fails_for_its_own_reasons_is_a_list_and_later_relists_stream_again() {
    for kind in [
        FailureKind::Outage(OutageReason::Forbidden),
        FailureKind::Outage(OutageReason::Refused),
        FailureKind::Unanswered,
        FailureKind::Expired,
    ] {
        let inputs = vec![
            fail(kind, "x", SHORT),
            Input::Opened,
            page(""),
            Input::Opened,
            fail(FailureKind::Expired, "410", LONG),
        ];
        assert_eq!(
            run(Server::Streams, inputs),
            ["stream", "no stream (x), list 0", "init", "done, watch 10", "", "stream 10"],
            "{kind:?}"
        );
    }
    // An overloaded server is asked for a stream again, but not for ever.
    let busy = || fail(FailureKind::Outage(OutageReason::Overloaded), "429", SHORT);
    assert_eq!(
        run(Server::Streams, vec![busy(), busy(), busy(), busy()])[1..],
        ["outage 429, wait 1, stream", "wait 2, stream", "wait 3, list 0", "wait 4, list 0"]
    );
}

#[test]
fn failures_of_a_server_that_restarts_do_not_lead_to_pages() {
    let dropped = || fail(FailureKind::Dropped, "reset", SHORT);
    let mut inputs: Vec<_> = (0..4).map(|_| unreachable()).collect();
    inputs.extend([Input::Opened, dropped(), Input::Opened, dropped(), Input::Opened, dropped()]);
    inputs.extend([Input::Opened, dropped(), Input::Opened, dropped()]);
    let requests: Vec<String> = run(Server::Streams, inputs)
        .iter()
        .filter_map(|line| line.split_once("wait ").map(|(_, rest)| rest[3..].to_owned()))
        .collect();
    assert_eq!(
        requests,
        ["stream", "stream", "stream", "stream", "stream", "list 0", "list 0", "list 0", "pages"]
    );
}

#[test]
fn a_relist_streams_from_the_last_version_and_then_from_any_version() {
    let end = || Input::InitialEnd { version: "10".into() };
    let expired = || fail(FailureKind::Expired, "410", SHORT);
    let inputs = vec![Input::Opened, end(), change("a", "12"), expired(), expired(), Input::Opened, end()];
    assert_eq!(
        run(Server::Streams, inputs),
        ["stream", "init", "done", "+a", "stream 12", "wait 1, stream", "init", "done"]
    );
}

#[test]
fn after_repeated_failures_a_list_falls_back_to_the_next_method() {
    let refused = || fail(FailureKind::Outage(OutageReason::Refused), "500", SHORT);
    let inputs = (0..7).map(|_| refused()).collect();
    assert_eq!(
        run(Server::Streams, inputs)[1..],
        [
            "no stream (500), list 0",
            "outage 500, wait 1, list 0",
            "wait 2, list 0",
            "wait 3, pages",
            "wait 4, pages",
            "wait 5, pages",
            "wait 6, pages"
        ]
    );
    // An unreachable server does not cause a fallback.
    let inputs = (0..5).map(|_| unreachable()).collect();
    assert_eq!(run(Server::Streams, inputs)[5..], ["wait 5, stream"]);
}

#[test]
fn all_pages_form_one_list_and_a_watch_follows() {
    let mut inputs = only_pages();
    inputs.extend([
        Input::Opened,
        item("a"),
        page("t1"),
        Input::Opened,
        item("b"),
        page(""),
        Input::Opened,
        change("c", "11"),
    ]);
    assert_eq!(
        run(Server::Lists, inputs),
        ["list 0", "wait 1, pages", "init", "+a", "page t1", "", "+b", "done, watch 10", "", "+c"]
    );
}

#[test]
fn an_expired_page_starts_the_list_over() {
    let mut inputs = only_pages();
    inputs.extend([
        Input::Opened,
        item("a"),
        page("t1"),
        fail(FailureKind::Expired, "410", SHORT),
        Input::Opened,
        item("a"),
        page(""),
    ]);
    assert_eq!(
        run(Server::Lists, inputs)[2..],
        ["init", "+a", "page t1", "wait 1, pages", "init", "+a", "done, watch 10"]
    );
}

#[test]
fn a_broken_page_is_requested_again() {
    let mut inputs = only_pages();
    let dropped = fail(FailureKind::Dropped, "eof", SHORT);
    inputs.extend([Input::Opened, page("t1"), Input::Opened, item("b"), dropped]);
    assert_eq!(run(Server::Lists, inputs)[2..], ["init", "page t1", "", "+b", "wait 1, page t1"]);
}

#[test]
fn a_broken_watch_resumes_from_the_last_version_without_a_list() {
    let inputs = vec![
        Input::Opened,
        page(""),
        Input::Opened,
        change("a", "11"),
        bookmark("20"),
        fail(FailureKind::Dropped, "reset", SHORT),
        Input::Opened,
        change("b", "21"),
        closed(SHORT),
    ];
    assert_eq!(
        run(Server::Lists, inputs),
        ["list 0", "init", "done, watch 10", "", "+a", "", "wait 1, watch 20", "", "+b", "watch 21"]
    );
}

#[test]
fn if_every_watch_expires_streams_are_delayed() {
    let end = || Input::InitialEnd { version: "10".into() };
    let expired = || fail(FailureKind::Expired, "410", SHORT);
    let inputs = vec![
        Input::Opened,
        end(),
        expired(),
        Input::Opened,
        end(),
        expired(),
        Input::Opened,
        end(),
        expired(),
    ];
    assert_eq!(
        run(Server::Streams, inputs),
        [
            "stream",
            "init",
            "done",
            "stream 10",
            "init",
            "done",
            "wait 1, stream 10",
            "init",
            "done",
            "outage Service: the version of 3 watches in a row had expired: each begins with a new list, wait 2, stream 10"
        ]
    );
}

#[test]
fn an_unsupported_optional_field_selector_is_dropped_once() {
    let invalid = || fail(FailureKind::Invalid, "field label not supported", SHORT);
    let (state, _) = State::begin(Service::TYPE, false, false);
    let (state, outputs) = step(state.with_optional_fields(true), invalid());
    assert_eq!(print(&outputs), "drop fields, list 0");
    let (_, outputs) = step(state, invalid());
    assert!(print(&outputs).starts_with("outage field label not supported"), "{}", print(&outputs));
}

#[test]
fn a_watch_without_events_is_a_success_if_it_lasted() {
    let inputs = vec![Input::Opened, page(""), closed(SHORT), closed(SHORT), closed(LONG), closed(SHORT)];
    assert_eq!(
        run(Server::Lists, inputs)[3..],
        ["wait 1, watch 10", "wait 2, watch 10", "watch 10", "wait 1, watch 10"]
    );
}

#[test]
fn retry_after_extends_the_wait() {
    let failure = Failure {
        kind: FailureKind::Outage(OutageReason::Overloaded),
        message: "429".into(),
        retry_after: Some(Duration::from_secs(7)),
    };
    let inputs = vec![Input::Failed { failure, lasted: SHORT }];
    assert_eq!(run(Server::Lists, inputs), ["list 0", "outage 429, wait 1/7s, list 0"]);
}

#[test]
fn a_version_that_is_refused_repeatedly_is_given_up() {
    let bad = || fail(FailureKind::Invalid, "400", SHORT);
    let inputs = vec![Input::Opened, page(""), bad(), bad(), bad(), bad()];
    assert_eq!(
        run(Server::Lists, inputs)[3..],
        ["outage 400, wait 1, watch 10", "wait 2, watch 10", "wait 3, watch 10", "wait 4, list 0"]
    );
}

#[test]
fn a_refused_page_starts_the_list_over() {
    let mut inputs = only_pages();
    inputs.extend([Input::Opened, page("t1"), fail(FailureKind::Invalid, "400", SHORT)]);
    assert_eq!(run(Server::Lists, inputs)[3..], ["page t1", "outage 400, wait 1, pages"]);
}

#[test]
fn a_resource_that_is_not_served_is_an_empty_list_only_if_optional() {
    let lacks = || fail(FailureKind::Outage(OutageReason::NotServed), "404", SHORT);
    assert_eq!(
        run(Server::ListsOptional, vec![lacks(), lacks(), Input::Opened]),
        ["list 0", "absent, init, done, wait 1/600s, list 0", "init, done, wait 1/600s, list 0", "init"]
    );
    assert_eq!(run(Server::Lists, vec![lacks()]), ["list 0", "outage 404, wait 1, list 0"]);
}

#[test]
fn a_forbidden_optional_resource_is_an_empty_list_and_no_outage() {
    let forbidden = || fail(FailureKind::Outage(OutageReason::Forbidden), "rbac", SHORT);
    assert_eq!(
        run(Server::ListsOptional, vec![forbidden(), forbidden()]),
        ["list 0", "absent rbac, init, done, wait 1/600s, list 0", "init, done, wait 1/600s, list 0"]
    );
    // If it was listed before, its objects are kept.
    let inputs = vec![Input::Opened, page(""), fail(FailureKind::Expired, "410", LONG), forbidden()];
    assert_eq!(run(Server::ListsOptional, inputs)[3..], ["list 10", "outage rbac, wait 1, list 10"]);
}

#[test]
fn an_undecodable_object_is_reported_and_its_version_is_resumed_from() {
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
        run(Server::Lists, inputs)[2..],
        ["rejected bad", "done, watch 10", "rejected bad", "rejected bad", "watch 12"]
    );
}

/// One of the inputs that can occur in a phase, selected by number.
fn any_input(state: &State, choice: u8) -> Input<Service> {
    let kind = match choice / 8 % 8 {
        0 => FailureKind::Expired,
        1 => FailureKind::Dropped,
        2 => FailureKind::Outage(OutageReason::NotServed),
        3 => FailureKind::Outage(OutageReason::Forbidden),
        4 => FailureKind::Outage(OutageReason::Refused),
        5 => FailureKind::Invalid,
        6 => FailureKind::Unanswered,
        _ => FailureKind::Outage(OutageReason::Unreachable),
    };
    let lasted = if choice.is_multiple_of(2) { SHORT } else { LONG };
    match (&state.phase, choice % 8) {
        (_, 0 | 1) => fail(kind, "x", lasted),
        (Phase::Streaming { .. }, 2 | 3) => change("a", "5"),
        (Phase::Streaming { .. }, 4) => bookmark("6"),
        (Phase::Streaming { .. }, 5) => Input::Silent,
        (Phase::Streaming { .. }, _) => Input::InitialEnd { version: "7".into() },
        (Phase::Cached { .. } | Phase::Paged { .. }, 2 | 3) => item("a"),
        (Phase::Paged { .. }, 4) => page("t"),
        (Phase::Cached { .. } | Phase::Paged { .. }, _) => page(""),
        (Phase::Watching { .. }, 2 | 3) => change("b", "20"),
        (Phase::Watching { .. }, 4) => bookmark("21"),
        (Phase::Watching { .. }, 5) => Input::Lasted,
        (Phase::Watching { .. }, _) => closed(lasted),
    }
}

proptest! {
    #[test]
    fn every_end_of_a_response_has_one_request_and_every_list_is_complete(
        choices in proptest::collection::vec(any::<(u8, bool)>(), 0..60), optional: bool, streaming: bool,
    ) {
        let (mut state, _) = State::begin(Service::TYPE, optional, streaming);
        let mut in_list = false;
        let mut opened = false;
        for (choice, open) in choices {
            // A response opens before any other input, or fails.
            let input = match any_input(&state, choice) {
                Input::Failed { failure, lasted } => Input::Failed { failure, lasted },
                _ if !opened => Input::Opened,
                input => input,
            };
            opened = opened || open;
            if input == Input::Opened { opened = true; }
            let stream_ignored = matches!(input, Input::Bookmark { .. }) && !state.is_watching();
            let ends = stream_ignored
                || matches!(input, Input::PageEnd(_) | Input::Silent | Input::Closed { .. } | Input::Failed { .. });
            let (next, outputs) = step(state, input);
            state = next;
            let requests = outputs.iter().filter(|o| matches!(o, Output::Request(_))).count();
            prop_assert_eq!(requests, usize::from(ends));
            if ends {
                prop_assert!(matches!(outputs.last(), Some(Output::Request(_))));
                opened = false;
            }
            for output in &outputs {
                match output {
                    Output::Send(Notice::Event(Event::Init)) => in_list = true,
                    Output::Send(Notice::Event(Event::InitDone)) => {
                        prop_assert!(in_list);
                        in_list = false;
                    }
                    _ => {}
                }
            }
        }
    }
}
