//! The settings of single modes: a section of the file and a prefix of flags each.

use super::{BOOL, Row, at};
use crate::config::domain::Config;
use crate::config::parse;
use ipnet::IpNet;
use portway_config::{Lens, Zero};
use portway_dataplane::{Scheduler, UserspaceSettings};
use std::time::Duration;

const PERIOD_HELP: &str = "How often all rules are checked though nothing changed.";
const MIN_HELP: &str = "The least time between two syncs; without it, changes are written as they come.";

/// `syncPeriod`. Go writes zero for one that is not set.
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

/// `masqueradeBit`. A change needs a restart: packets that are under way have the old mark.
fn masquerade_bit(path: &'static str, field: Lens<Config, u8>, flag: &'static str) -> Row {
    Row::integer(path, field, 14, 0..=31)
        .flag(flag, "BIT")
        .help("The bit of the packet mark that means masquerade, 0 to 31.")
}

pub(super) fn nftables() -> [Row; 3] {
    [
        masquerade_bit("nftables.masqueradeBit", at!(nftables.masquerade.bit), "--nftables-masquerade-bit"),
        sync_period("nftables.syncPeriod", at!(nftables.sync.period), "--nftables-sync-period"),
        min_sync_period("nftables.minSyncPeriod", at!(nftables.sync.min), "--nftables-min-sync-period"),
    ]
}

pub(super) fn iptables() -> [Row; 5] {
    [
        Row::switch("iptables.masqueradeAll", at!(iptables.masquerade.all), false)
            .live()
            .help("Masquerade all traffic to cluster IPs, in every mode but nftables; the flag is --masquerade-all."),
        masquerade_bit("iptables.masqueradeBit", at!(iptables.masquerade.bit), "--iptables-masquerade-bit")
            .help("The bit of the packet mark that means masquerade, 0 to 31, in every mode but nftables."),
        Row::switch("iptables.localhostNodePorts", at!(iptables.localhost_node_ports), true)
            .live()
            .flag("--iptables-localhost-nodeports", BOOL)
            .help("Whether node ports answer on 127.0.0.1."),
        sync_period("iptables.syncPeriod", at!(iptables.sync.period), "--iptables-sync-period")
            .help("How often all rules are checked though nothing changed; the flag counts in mode nftables too."),
        min_sync_period("iptables.minSyncPeriod", at!(iptables.sync.min), "--iptables-min-sync-period")
            .help("The least time between two syncs; the flag counts in mode nftables too."),
    ]
}

pub(super) fn ipvs() -> [Row; 8] {
    [
        sync_period("ipvs.syncPeriod", at!(ipvs.sync.period), "--ipvs-sync-period"),
        min_sync_period("ipvs.minSyncPeriod", at!(ipvs.sync.min), "--ipvs-min-sync-period"),
        Row::text("ipvs.scheduler", at!(ipvs.scheduler), Scheduler::default(), parse::scheduler, |scheduler| {
            scheduler.as_str().to_owned()
        })
        .live()
        .flag("--ipvs-scheduler", "NAME")
        .help(
            "How an endpoint is chosen: rr, wrr, lc, wlc, sed, nq, sh, dh, mh, lblc, lblcr, fo or ovf. A Service may \
             ask for another one by its annotation portway.dev/ipvs-scheduler.",
        ),
        Row::texts("ipvs.excludeCIDRs", at!(ipvs.exclude_cidrs), parse::cidr, IpNet::to_string)
            .live()
            .flag("--ipvs-exclude-cidrs", "CIDR")
            .help("Leave virtual servers with addresses in these ranges alone: other programs made them."),
        Row::switch("ipvs.strictARP", at!(ipvs.strict_arp), false)
            .live()
            .flag("--ipvs-strict-arp", BOOL)
            .help("Answer ARP only for addresses of the interface that was asked."),
        Row::duration("ipvs.tcpTimeout", at!(ipvs.tcp_timeout), Duration::ZERO)
            .live()
            .flag("--ipvs-tcp-timeout", "DURATION")
            .help("Forget idle TCP sessions after this long; 0 leaves the kernel's value."),
        Row::duration("ipvs.tcpFinTimeout", at!(ipvs.tcp_fin_timeout), Duration::ZERO)
            .live()
            .flag("--ipvs-tcpfin-timeout", "DURATION")
            .help("Forget TCP sessions this long after a FIN; 0 leaves the kernel's value."),
        Row::duration("ipvs.udpTimeout", at!(ipvs.udp_timeout), Duration::ZERO)
            .live()
            .flag("--ipvs-udp-timeout", "DURATION")
            .help("Forget UDP sessions after this long; 0 leaves the kernel's value."),
    ]
}

/// Portway's own section. Go does not write it, so a zero in it was meant: it is kept, or refused where nothing works
/// with it.
pub(super) fn userspace() -> [Row; 9] {
    let default = UserspaceSettings::default();
    [
        Row::text("userspace.balancing", at!(userspace.balancing), default.balancing, parse::balancing, |b| {
            b.as_str().to_owned()
        })
        .flag("--userspace-balancing", "NAME")
        .help(
            "How an endpoint is chosen: round-robin, or least-connections, the endpoint with the fewest connections \
             through this node.",
        ),
        Row::duration("userspace.connectTimeout", at!(userspace.connect_timeout), default.connect_timeout)
            .zero(Zero::Refused)
            .flag("--userspace-connect-timeout", "DURATION")
            .help("How long an endpoint may take to accept a connection before the next one is tried."),
        Row::integer(
            "userspace.connectAttempts",
            at!(userspace.connect_attempts),
            default.connect_attempts,
            1..=100,
        )
        .flag("--userspace-connect-attempts", "N")
        .help("How many endpoints are tried for one connection before it is refused, 1 to 100."),
        Row::duration("userspace.drainTimeout", at!(userspace.drain_timeout), default.drain_timeout)
            .flag("--userspace-drain-timeout", "DURATION")
            .help("How long connections stay open whose endpoint was removed; 0 closes them at once."),
        Row::duration("userspace.stopTimeout", at!(userspace.stop_timeout), default.stop_timeout)
            .flag("--userspace-stop-timeout", "DURATION")
            .help(
                "In a container, where every process ends with the agent: how long it waits for open connections \
                 when it is told to stop; 0 closes them at once. A pod's terminationGracePeriodSeconds should be \
                 longer.",
            ),
        Row::duration("userspace.udpIdleTimeout", at!(userspace.udp_timeout), default.udp_timeout)
            .zero(Zero::Refused)
            .flag("--userspace-udp-idle-timeout", "DURATION")
            .help("Forget UDP sessions after this long without a packet."),
        Row::integer(
            "userspace.maxUDPSessions",
            at!(userspace.udp_sessions),
            default.udp_sessions,
            1..=1_000_000,
        )
        .flag("--userspace-max-udp-sessions", "N")
        .help("How many UDP sessions there may be at once, 1 to 1000000."),
        sync_period("userspace.syncPeriod", at!(userspace.sync.period), "--userspace-sync-period"),
        min_sync_period("userspace.minSyncPeriod", at!(userspace.sync.min), "--userspace-min-sync-period"),
    ]
    .map(Row::live)
}
