//! When an outage is reported, and which input ends it.

use super::super::pages::MAX_EMPTY_PAGES;
use super::*;

#[test]
fn a_list_that_does_not_end_is_given_up_and_reported_once() {
    let mut inputs = only_pages();
    for _ in 0..2 {
        inputs.extend([Input::Opened, item("a"), page("t1"), Input::Opened, item("b"), page("t1")]);
    }
    inputs.extend([Input::Opened, page("")]);
    let outage = "outage Service: the list does not end: the server returned the same continue token twice";
    assert_eq!(
        run(Server::Lists, inputs)[2..],
        [
            "init",
            "+a",
            "page t1",
            "",
            "+b",
            &format!("{outage}, wait 1, pages"),
            "init",
            "+a",
            "page t1",
            "",
            "+b",
            "wait 2, pages",
            "init",
            "recovered, done, watch 10",
        ]
    );
    // Another token on each page, and no object.
    let mut inputs = only_pages();
    for number in 0..MAX_EMPTY_PAGES {
        inputs.extend([Input::Opened, page(&format!("t{number}"))]);
    }
    let lines = run(Server::Lists, inputs);
    let last = lines.last().map(String::as_str).unwrap_or_default();
    assert!(last.contains("100 pages without objects in a row, wait 1, pages"), "{last}");
    // A page of objects in between is a sign of progress.
    let mut inputs = only_pages();
    for number in 0..3 * MAX_EMPTY_PAGES {
        inputs.push(Input::Opened);
        inputs.extend(number.is_multiple_of(50).then(|| item("a")));
        inputs.push(page(&format!("t{number}")));
    }
    assert!(!run(Server::Lists, inputs).iter().any(|line| line.contains("outage")));
}

#[test]
fn watches_that_end_at_once_are_reported_once_and_until_one_has_an_event() {
    let mut inputs = vec![Input::Opened, page("")];
    for _ in 0..4 {
        inputs.extend([Input::Opened, closed(SHORT)]);
    }
    inputs.extend([Input::Opened, bookmark("11")]);
    let outage = "outage Service: the server has ended 3 watches in a row at once, without an event";
    assert_eq!(
        run(Server::Lists, inputs)[4..],
        [
            "wait 1, watch 10",
            "",
            "wait 2, watch 10",
            "",
            &format!("{outage}, wait 3, watch 10"),
            "",
            "wait 4, watch 10",
            "",
            "recovered",
        ]
    );
}

#[test]
fn responses_that_break_are_reported_once_and_until_one_is_of_use() {
    let garbage = |n: u32| fail(FailureKind::Outage(OutageReason::Refused), &format!("garbage {n}"), SHORT);
    let mut inputs = vec![Input::Opened, page("")];
    for n in 0..3 {
        inputs.extend([Input::Opened, garbage(n)]);
    }
    inputs.extend([Input::Opened, Input::Lasted]);
    assert_eq!(
        run(Server::Lists, inputs)[3..],
        [
            "",
            "outage garbage 0, wait 1, watch 10",
            "",
            "wait 2, watch 10",
            "",
            "wait 3, watch 10",
            "",
            "recovered"
        ]
    );
    // The same with lists.
    let inputs = vec![Input::Opened, garbage(0), Input::Opened, garbage(1), Input::Opened, page("")];
    assert_eq!(
        run(Server::Lists, inputs)[1..],
        [
            "init",
            "outage garbage 0, wait 1, list 0",
            "init",
            "wait 2, list 0",
            "init",
            "recovered, done, watch 10"
        ]
    );
}

#[test]
fn lists_that_expire_again_and_again_are_an_outage() {
    let expired = || fail(FailureKind::Expired, "410", SHORT);
    let mut inputs = only_pages();
    for _ in 0..3 {
        inputs.extend([Input::Opened, item("a"), page("t1"), expired()]);
    }
    inputs.extend([Input::Opened, item("a"), page("")]);
    let lines = run(Server::Lists, inputs);
    let waits: Vec<&String> = lines.iter().filter(|line| line.contains("wait")).collect();
    let outage = "outage Service: 3 lists in a row have expired before they were complete";
    assert_eq!(
        waits,
        ["wait 1, pages", "wait 1, pages", "wait 2, pages", &format!("{outage}, wait 3, pages")]
    );
    assert_eq!(lines.last().map(String::as_str), Some("recovered, done, watch 10"));
}

#[test]
fn refused_connections_are_not_counted_as_watches_that_ended_at_once() {
    let mut inputs = vec![Input::Opened, page("")];
    inputs.extend([unreachable(), unreachable(), unreachable(), Input::Opened, closed(SHORT)]);
    assert_eq!(run(Server::Lists, inputs)[6..], ["recovered", "wait 4, watch 10"]);
}

#[test]
fn an_outage_is_reported_once_until_it_changes_or_ends() {
    let forbidden = || fail(FailureKind::Outage(OutageReason::Forbidden), "rbac", SHORT);
    let inputs =
        vec![unreachable(), unreachable(), forbidden(), forbidden(), Input::Opened, page(""), unreachable()];
    assert_eq!(
        run(Server::Lists, inputs),
        [
            "list 0",
            "outage unreachable, wait 1, list 0",
            "wait 2, list 0",
            "outage rbac, wait 3, list 0",
            "wait 4, list 0",
            "recovered, init",
            "done, watch 10",
            "outage unreachable, wait 5, watch 10",
        ]
    );
}

#[test]
fn two_consecutive_broken_connections_are_an_outage_but_one_is_not() {
    let dropped = || fail(FailureKind::Dropped, "reset", SHORT);
    let mut inputs = vec![Input::Opened, page(""), Input::Opened, dropped(), Input::Opened, dropped()];
    inputs.extend([Input::Opened, Input::Lasted]);
    assert_eq!(
        run(Server::Lists, inputs)[4..],
        ["wait 1, watch 10", "", "outage reset, wait 2, watch 10", "", "recovered"]
    );
}

#[test]
fn an_expired_watch_is_listed_again_at_once_but_repeated_expiry_is_delayed() {
    let expired = || fail(FailureKind::Expired, "410", SHORT);
    // As when a server restarts: unreachable for a while, then the version has expired.
    let mut inputs =
        vec![Input::Opened, page(""), closed(LONG), unreachable(), unreachable(), Input::Opened, expired()];
    for _ in 0..2 {
        inputs.extend([Input::Opened, page(""), Input::Opened, expired()]);
    }
    inputs.extend([Input::Opened, page(""), Input::Opened, bookmark("20"), expired()]);
    assert_eq!(
        run(Server::Lists, inputs)[6..],
        [
            "recovered",
            "list 10",
            "init",
            "done, watch 10",
            "",
            "wait 1, list 10",
            "init",
            "done, watch 10",
            "",
            "outage Service: the version of 3 watches in a row had expired: each begins with a new list, wait 2, list 10",
            "init",
            "done, watch 10",
            "",
            "recovered",
            "list 20"
        ]
    );
}
