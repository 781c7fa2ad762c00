//! A full table of connections. Its size is that of the whole kernel, so the test needs a kernel of its own.

use super::start;
use crate::agent_lab::AgentLab;
use crate::{Outcome, Test};
use std::net::UdpSocket;

pub(crate) const TESTS: &[Test] = &[("a_full_table_of_connections_is_reported", full)];

const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Sets the limit in the network namespace of the first process, the only one that may change it.
fn set_limit(limit: &str) -> std::io::Result<String> {
    let before = std::fs::read_to_string(LIMIT)?;
    let write = || -> std::io::Result<()> {
        let first = std::fs::File::open("/proc/1/ns/net")?;
        rustix::thread::move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&first),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )?;
        std::fs::write(LIMIT, limit)
    };
    std::thread::scope(|scope| scope.spawn(write).join())
        .unwrap_or_else(|_| Err(std::io::Error::other("panic")))?;
    Ok(before)
}

fn full(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let before = set_limit("20")?;
    let to = lab.node_ips()[0];
    let flood = || -> std::io::Result<()> {
        for _ in 0..200 {
            // A socket of its own is a flow of its own.
            _ = UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", (to, 9));
        }
        Ok(())
    };
    let flooded = lab.client().run(flood).map_err(Into::into);
    let reported = flooded.and_then(|()| lab.logged(&["ERROR", "the table of connections is full", "of 20"]));
    // Before pages are read, whose connections need entries too.
    set_limit(before.trim())?;
    reported?;
    lab.metric("portway_conntrack_dropped_packets_total", |dropped| dropped > 0.0)?;
    lab.web_works()
}
