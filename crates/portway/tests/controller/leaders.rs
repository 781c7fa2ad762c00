//! Several processes, of which one writes.

use crate::cluster::{ControllerLab, WAIT_TIMEOUT};

const LEADS: &str = "this process leads";

pub(crate) fn one_writes(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    lab.start()?;
    wait_for(lab, 0, LEADS)?;
    lab.start()?;
    wait_for(lab, 1, "another process leads")?;
    wait_for(lab, 1, "listed all objects")?;
    lab.pod_at("web", "web-1", "10.244.9.1", true);
    lab.expect("web", &["10.244.9.1"])?;
    if lab.controllers[1].log().contains("writing endpoints") {
        return Err("the second process has written".to_owned());
    }
    // It is killed: nothing releases the Lease, and the second one leads when it has expired.
    lab.controllers.remove(0);
    lab.pod_at("web", "web-2", "10.244.9.2", true);
    wait_for(lab, 0, LEADS)?;
    lab.expect("web", &["10.244.9.1", "10.244.9.2"])
}

pub(crate) fn hand_over(lab: &mut ControllerLab) -> Result<(), String> {
    lab.service("web", 1);
    // With this Lease, an expiry would take longer than the test waits.
    let flags = [
        "--bind-address=127.0.0.1:0",
        "--leader-elect-lease-duration=10m",
        "--leader-elect-renew-deadline=9m",
    ];
    lab.start_with(&flags)?;
    wait_for(lab, 0, LEADS)?;
    lab.start_with(&flags)?;
    wait_for(lab, 1, "another process leads")?;
    let (status, _) = lab.controllers.remove(0).terminate().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!("{status} after SIGTERM"));
    }
    wait_for(lab, 0, LEADS)?;
    lab.pod_at("web", "web-1", "10.244.9.1", true);
    lab.expect("web", &["10.244.9.1"])
}

fn wait_for(lab: &mut ControllerLab, index: usize, text: &str) -> Result<(), String> {
    let controller = lab.controllers.get_mut(index).ok_or("no such process")?;
    controller.wait_for(text, WAIT_TIMEOUT).map(drop).map_err(|e| e.to_string())
}
