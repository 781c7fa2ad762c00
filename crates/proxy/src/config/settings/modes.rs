//! The settings of single modes: each mode has a section of the file and a prefix of flags.

use super::{BOOL, Row, field};
use crate::config::domain::Config;
use crate::config::parse;
use ipnet::IpNet;
use portway_config::{Lens, Zero};
use portway_dataplane::{Scheduler, UserspaceSettings};
use std::time::Duration;

const PERIOD_HELP: &str = "The time between syncs if nothing changes.";
const MIN_HELP: &str =
    "The shortest time between two syncs; by default it depends on the duration of the last sync.";

/// `syncPeriod`. Go writes zero for a period that is not set.
fn sync_period(path: &'static str, field: Lens<Config, Duration>, flag: &'static str) -> Row {
    Row::duration(path, field, Duration::from_secs(30))
        .zero(Zero::UnsetInFile)
        .live()
        .flag(flag, "DURATION")
        .help(PERIOD_HELP)
}

/// `minSyncPeriod`.
fn min_sync_period(path: &'static str, field: Lens<Config, Option<Duration>>, flag: &'static str) -> Row {
    Row::optional_duration(path, field, None)
        .live()
        .default_text("none")
        .flag(flag, "DURATION")
        .help(MIN_HELP)
}

/// `masqueradeBit`. A change needs a restart, because packets in transit have the old mark.
fn masquerade_bit(path: &'static str, field: Lens<Config, u8>, flag: &'static str) -> Row {
    Row::integer(path, field, 14, 0..=31)
        .flag(flag, "BIT")
        .help("The bit of the packet mark that asks for masquerading, 0 to 31.")
}

pub(super) fn nftables() -> [Row; 3] {
    [
        masquerade_bit(
            "nftables.masqueradeBit",
            field!(nftables.masquerade.bit),
            "--nftables-masquerade-bit",
        ),
        sync_period("nftables.syncPeriod", field!(nftables.sync.period), "--nftables-sync-period"),
        min_sync_period("nftables.minSyncPeriod", field!(nftables.sync.min), "--nftables-min-sync-period"),
    ]
}

pub(super) fn iptables() -> [Row; 5] {
    [
        Row::switch("iptables.masqueradeAll", field!(iptables.masquerade.all), false)
            .live()
            .help("Masquerade all traffic to cluster IPs, in every mode but nftables; the flag is --masquerade-all."),
        masquerade_bit("iptables.masqueradeBit", field!(iptables.masquerade.bit), "--iptables-masquerade-bit")
            .help("The bit of the packet mark that asks for masquerading, 0 to 31, in every mode but nftables."),
        Row::switch("iptables.localhostNodePorts", field!(iptables.localhost_node_ports), true)
            .live()
            .flag("--iptables-localhost-nodeports", BOOL)
            .help("Serve node ports on 127.0.0.1 too."),
        sync_period("iptables.syncPeriod", field!(iptables.sync.period), "--iptables-sync-period")
            .help("The time between syncs if nothing changes; the flag applies to mode nftables too."),
        min_sync_period("iptables.minSyncPeriod", field!(iptables.sync.min), "--iptables-min-sync-period")
            .help("The shortest time between two syncs; the flag applies to mode nftables too."),
    ]
}

pub(super) fn ipvs() -> [Row; 8] {
    [
        sync_period("ipvs.syncPeriod", field!(ipvs.sync.period), "--ipvs-sync-period"),
        min_sync_period("ipvs.minSyncPeriod", field!(ipvs.sync.min), "--ipvs-min-sync-period"),
        Row::text("ipvs.scheduler", field!(ipvs.scheduler), Scheduler::default(), parse::scheduler, |scheduler| {
            scheduler.as_str().to_owned()
        })
        .live()
        .flag("--ipvs-scheduler", "NAME")
        .help(
            "How an endpoint is chosen: rr, wrr, lc, wlc, sed, nq, sh, dh, mh, lblc, lblcr, fo or ovf. A Service may \
             choose another one with the annotation portway.dev/ipvs-scheduler.",
        ),
        Row::texts("ipvs.excludeCIDRs", field!(ipvs.exclude_cidrs), parse::cidr, IpNet::to_string)
            .live()
            .flag("--ipvs-exclude-cidrs", "CIDR")
            .help("Do not remove virtual servers with addresses in these ranges: other programs manage them."),
        Row::switch("ipvs.strictARP", field!(ipvs.strict_arp), false)
            .live()
            .flag("--ipvs-strict-arp", BOOL)
            .help("Answer ARP only for addresses of the interface that received the request."),
        Row::duration("ipvs.tcpTimeout", field!(ipvs.tcp_timeout), Duration::ZERO)
            .live()
            .flag("--ipvs-tcp-timeout", "DURATION")
            .help("The timeout of idle TCP connections; 0 keeps the kernel's value."),
        Row::duration("ipvs.tcpFinTimeout", field!(ipvs.tcp_fin_timeout), Duration::ZERO)
            .live()
            .flag("--ipvs-tcpfin-timeout", "DURATION")
            .help("The timeout of TCP connections after a FIN; 0 keeps the kernel's value."),
        Row::duration("ipvs.udpTimeout", field!(ipvs.udp_timeout), Duration::ZERO)
            .live()
            .flag("--ipvs-udp-timeout", "DURATION")
            .help("The timeout of idle UDP flows; 0 keeps the kernel's value."),
    ]
}

/// The section that only Portway has. Go does not write it, so a zero in it was typed on purpose: it is kept, or
/// rejected where it is not a usable value.
pub(super) fn userspace() -> [Row; 9] {
    let default = UserspaceSettings::default();
    [
        Row::text("userspace.balancing", field!(userspace.balancing), default.balancing, parse::balancing, |b| {
            b.as_str().to_owned()
        })
        .flag("--userspace-balancing", "NAME")
        .help(
            "How an endpoint is chosen: round-robin, or least-connections, the endpoint with the fewest connections \
             through this node.",
        ),
        Row::duration("userspace.connectTimeout", field!(userspace.connect_timeout), default.connect_timeout)
            .zero(Zero::Invalid)
            .flag("--userspace-connect-timeout", "DURATION")
            .help("How long an endpoint may take to accept a connection before the next one is tried."),
        Row::integer(
            "userspace.connectAttempts",
            field!(userspace.connect_attempts),
            default.connect_attempts,
            1..=100,
        )
        .flag("--userspace-connect-attempts", "N")
        .help("How many endpoints are tried for one connection before it is refused, 1 to 100."),
        Row::duration("userspace.drainTimeout", field!(userspace.drain_timeout), default.drain_timeout)
            .flag("--userspace-drain-timeout", "DURATION")
            .help("How long connections stay open after their endpoint was removed; 0 closes them at once."),
        Row::duration("userspace.stopTimeout", field!(userspace.stop_timeout), default.stop_timeout)
            .flag("--userspace-stop-timeout", "DURATION")
            .help(
                "In a container, where every process ends with the agent: how long a stopping agent waits for open \
                 connections; 0 closes them at once. The pod's terminationGracePeriodSeconds should be longer.",
            ),
        Row::duration("userspace.udpIdleTimeout", field!(userspace.udp_timeout), default.udp_timeout)
            .zero(Zero::Invalid)
            .flag("--userspace-udp-idle-timeout", "DURATION")
            .help("The timeout of idle UDP sessions."),
        Row::integer(
            "userspace.maxUDPSessions",
            field!(userspace.udp_sessions),
            default.udp_sessions,
            1..=1_000_000,
        )
        .flag("--userspace-max-udp-sessions", "N")
        .help("The maximum number of UDP sessions, 1 to 1000000."),
        sync_period("userspace.syncPeriod", field!(userspace.sync.period), "--userspace-sync-period"),
        min_sync_period("userspace.minSyncPeriod", field!(userspace.sync.min), "--userspace-min-sync-period"),
    ]
    .map(Row::live)
}
