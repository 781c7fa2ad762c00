//! Faults of the API server and of the process.

use crate::cluster::{ControllerLab, WAIT_TIMEOUT};
use portway_lab::api::WriteFault;
use portway_lab::eventually;
use portway_model::api::complete::EndpointSlice;

/// Pods that exist only as objects.
fn pods(lab: &ControllerLab, numbers: std::ops::Range<u8>) -> Vec<String> {
    let address = |n: u8| format!("10.244.9.{n}");
    for n in numbers.clone() {
        lab.pod_at("web", &format!("web-{n}"), &address(n), true);
    }
    numbers.map(address).collect()
}

fn expect(lab: &ControllerLab, addresses: &[String]) -> Result<(), String> {
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    lab.expect("web", &addresses)
}

pub(crate) fn refused(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.start()?;
    lab.expect("web", &[])?;
    let mut all = 0;
    for code in [409, 429, 500, 503, 504] {
        lab.api.fail_writes(WriteFault::Refused(code), 5);
        all += 2;
        expect(lab, &pods(lab, 0..all)).map_err(|e| format!("{code}: {e}"))?;
    }
    Ok(())
}

pub(crate) fn lost_answers(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    let addresses = pods(lab, 0..150);
    lab.api.fail_writes(WriteFault::AnswerLost, 3);
    lab.start()?;
    expect(lab, &addresses)?;
    lab.api.fail_writes(WriteFault::AnswerLost, 3);
    let addresses = pods(lab, 0..180);
    expect(lab, &addresses)?;
    let slices = lab.api.objects::<EndpointSlice>().len();
    if slices == 2 { Ok(()) } else { Err(format!("{slices} slices instead of 2")) }
}

pub(crate) fn outage(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.start()?;
    expect(lab, &pods(lab, 0..50))?;
    pods(lab, 50..70);
    lab.api.outage(true);
    let addresses = pods(lab, 0..100);
    (0..10).for_each(|n| lab.delete_pod(&format!("web-{n}")));
    lab.api.outage(false);
    expect(lab, &addresses[10..])
}

pub(crate) fn compaction(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.start()?;
    expect(lab, &pods(lab, 0..50))?;
    for n in 0..5 {
        pods(lab, 50..60 + n * 10);
        lab.delete_pod(&format!("web-{n}"));
        lab.api.compact();
    }
    expect(lab, &pods(lab, 5..100))
}

pub(crate) fn killed(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.service("other", 2);
    for round in 0..5_u8 {
        let before = lab.writes().len();
        let addresses = pods(lab, 0..110 + round * 20);
        lab.start()?;
        // The process is killed after its first or second write, whatever it does then.
        let written = || {
            let written = lab.writes().len() - before;
            if written > usize::from(round % 2) { Ok(()) } else { Err(format!("{written} writes")) }
        };
        eventually(WAIT_TIMEOUT, written).map_err(|e| e.to_string())?;
        lab.controllers.clear();
        if round == 4 {
            lab.start()?;
            expect(lab, &addresses)?;
        }
    }
    let slices = lab.api.objects::<EndpointSlice>().len();
    if slices == 3 { Ok(()) } else { Err(format!("{slices} slices instead of 3")) }
}

pub(crate) fn reported(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.api.fail_writes(WriteFault::Refused(422), 8);
    lab.start()?;
    expect(lab, &pods(lab, 0..1))?;
    let controller = lab.controllers.first_mut().ok_or("no controller")?;
    controller.wait_for("this test refuses the write", WAIT_TIMEOUT).map_err(|e| e.to_string())?;
    let reason = |event: &serde_json::Value| event["reason"].as_str().unwrap_or_default().to_owned();
    let written = || {
        let events = lab.api.events();
        let reasons: Vec<String> = events.iter().map(reason).collect();
        match reasons.iter().any(|reason| reason == "FailedToUpdateEndpointSlices") {
            true => Ok(()),
            false => Err(format!("{reasons:?}")),
        }
    };
    eventually(WAIT_TIMEOUT, written).map_err(|e| format!("no Event: {e}"))
}
