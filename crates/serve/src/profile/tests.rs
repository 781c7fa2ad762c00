//! Tests of `profile`.

use super::encoding::Profile;
use super::*;
use crate::{DualStack, Limits, Server, get, listen};
use prost::Message;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn start(enabled: bool) -> Server {
    let listener = listen("127.0.0.1:0".parse().expect("an address"), DualStack::Yes).expect("a port");
    Server::start(listener, profile_router(move || enabled, "enableProfiling"), Limits::default())
        .expect("a server")
}

/// A page's body, which is not text.
async fn bytes(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("headers");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    answer.split_off(end + 4)
}

/// A function that a profile must show.
#[inline(never)]
fn use_the_processor(until: &AtomicBool) -> u64 {
    let mut sum = 0_u64;
    while !until.load(Ordering::Relaxed) {
        for number in 0..10_000 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
        }
    }
    sum
}

#[tokio::test]
async fn a_profile_shows_the_functions_that_used_the_processor() {
    let server = start(true);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let busy = std::thread::spawn(move || use_the_processor(&stopped));
    let body = bytes(server.address(), "/debug/pprof/profile?seconds=1").await;
    stop.store(true, Ordering::Relaxed);
    busy.join().expect("a thread that ends");

    let profile = Profile::decode(body.as_slice()).expect("a profile");
    let text = |index: i64| profile.strings[usize::try_from(index).expect("an index")].as_str();
    assert_eq!(text(0), "", "the first string is the empty one");
    let types: Vec<_> = profile.sample_types.iter().map(|of| (text(of.kind), text(of.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(profile.duration_nanos, 1_000_000_000);
    assert!(profile.time_nanos > 0);
    let found = profile.functions.iter().find(|function| text(function.name).contains("use_the_processor"));
    let function = found.expect("the function is named").id;
    let within = |sample: &&super::encoding::Sample| {
        sample.locations.iter().any(|&id| {
            let location = profile.locations.iter().find(|location| location.id == id).expect("a location");
            location.lines.iter().any(|line| line.function == function)
        })
    };
    let samples: Vec<_> = profile.samples.iter().filter(within).collect();
    assert!(samples.iter().all(|sample| sample.values[1] == sample.values[0] * profile.period));
    assert!(samples.iter().map(|sample| sample.values[0]).sum::<i64>() > 0, "it has samples");

    let directory = private_directory().expect("the directory of samples");
    std::fs::remove_dir_all(directory).expect("removed");

    // Another one is refused while one is being taken.
    let _taken = ONE_AT_A_TIME.lock().await;
    let answer = get(server.address(), "/debug/pprof/profile?seconds=1").await.expect("an answer");
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("another profile is being taken"), "{}", answer.body);
}

#[tokio::test]
async fn pages_say_what_is_there_and_what_is_not() {
    let on = start(true);
    let off = start(false);
    for (server, path, status, text) in [
        (&off, "/debug/pprof", 404, "set enableProfiling"),
        (&off, "/debug/pprof/", 404, "set enableProfiling"),
        (&off, "/debug/pprof/profile", 404, "set enableProfiling"),
        (&off, "/debug/pprof/heap", 404, "set enableProfiling"),
        (&on, "/debug/pprof", 200, "profile?seconds=30"),
        (&on, "/debug/pprof/", 200, "profile?seconds=30"),
        (&on, "/debug/pprof/heap", 404, "heaptrack"),
        (&on, "/debug/pprof/trace", 404, "no such profile"),
        (&on, "/debug/pprof/profile?seconds=0", 400, "between 1 and 600"),
        (&on, "/debug/pprof/profile?debug=1&seconds=many", 400, "seconds=many"),
    ] {
        let answer = get(server.address(), path).await.expect("an answer");
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body.contains(text), "{path}: {}", answer.body);
    }
}

#[test]
fn a_profile_takes_thirty_seconds_unless_told_otherwise() {
    assert_eq!(duration(""), Ok(Duration::from_secs(30)));
    assert_eq!(duration("debug=1&seconds=600"), Ok(Duration::from_secs(600)));
    assert!(duration("seconds=601").is_err());
}

#[test]
fn samples_are_kept_where_only_this_user_can_read_them() {
    let user = rustix::process::geteuid().as_raw();
    let base = std::env::temp_dir().join(format!("portway-profile-test-{}", std::process::id()));
    assert_eq!(private(base.clone(), user).expect("created"), base);
    assert_eq!(private(base.clone(), user).expect("there already"), base);
    assert!(private(base.clone(), user + 1).is_err(), "another user's");
    std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    assert!(private(base.clone(), user).is_err(), "others can enter it");
    std::fs::remove_dir(&base).expect("removed");
}
