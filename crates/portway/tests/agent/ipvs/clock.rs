//! Jumps of the clock, which only a kernel of its own can make.

use super::start;
use crate::agent_lab::AgentLab;
use crate::{Outcome, Test, ensure, objects};

pub(crate) const TESTS: &[Test] = &[("jumps_of_the_clock_change_nothing", jumps)];

fn jumps(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    // Forward by a day, back by two, and to the right time again.
    for (jump, pod) in [("+1 day", "pod1a"), ("-2 days", "pod1b"), ("+1 day", "pod1a")] {
        lab.tool("date", &["-s", jump], "")?;
        lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips(pod)[..1]));
        lab.reaches("10.96.0.1:80".parse()?, &[pod])?;
        for page in ["/healthz", "/livez"] {
            let page = lab.health(page)?;
            ensure(page.status == 200, || format!("after {jump}: {page:?}"))?;
        }
    }
    let log = lab.stop()?;
    ensure(!log.contains("repaired"), || "the rules were repaired".to_owned())
}
