//! Which changes of the configuration a running proxy applies, and which need a restart.

use super::*;

#[test]
fn equal_configurations_have_no_changes() {
    assert!(diff_live(&config(""), &config("mode: \"\"\n")).is_empty());
}

#[test]
fn each_change_is_either_live_or_needs_a_restart() {
    let old = config("");
    for (fields, applied, restart) in [
        ("nftables: {masqueradeAll: true}", &["nftables.masqueradeAll"][..], &[][..]),
        ("nodePortAddresses: [10.0.0.0/8]", &["nodePortAddresses"], &[]),
        ("clusterCIDR: 10.0.0.0/8", &["clusterCIDR"], &[]),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            &["detectLocalMode", "detectLocal.bridgeInterface"],
            &[],
        ),
        (
            "nftables: {syncPeriod: 1m, minSyncPeriod: 2s}",
            &["nftables.syncPeriod", "nftables.minSyncPeriod"],
            &[],
        ),
        ("conntrack: {tcpBeLiberal: true}", &["conntrack.tcpBeLiberal"], &[]),
        ("oomScoreAdj: 5", &["oomScoreAdj"], &[]),
        ("logging: {verbosity: 4}", &["logging.verbosity"], &[]),
        ("mode: userspace\nnodePortAddresses: [localhost, all]", &["mode"], &[]),
        (
            "userspace: {balancing: least-connections, connectTimeout: 2s, connectAttempts: 5}",
            &["userspace.balancing", "userspace.connectTimeout", "userspace.connectAttempts"],
            &[],
        ),
        (
            "userspace: {drainTimeout: 0s, stopTimeout: 1s, udpIdleTimeout: 1m, maxUDPSessions: 1}",
            &[
                "userspace.drainTimeout",
                "userspace.stopTimeout",
                "userspace.udpIdleTimeout",
                "userspace.maxUDPSessions",
            ],
            &[],
        ),
        (
            "userspace: {syncPeriod: 1m, minSyncPeriod: 2s}",
            &["userspace.syncPeriod", "userspace.minSyncPeriod"],
            &[],
        ),
        ("hostnameOverride: other", &[], &["hostnameOverride"]),
        ("healthzBindAddress: 1.2.3.4:5", &[], &["healthzBindAddress"]),
        ("metricsBindAddress: 1.2.3.4:5", &[], &["metricsBindAddress"]),
        ("clientConnection: {kubeconfig: /x}", &[], &["clientConnection.kubeconfig"]),
        ("nftables: {masqueradeBit: 3}\noomScoreAdj: 5", &["oomScoreAdj"], &["nftables.masqueradeBit"]),
    ] {
        let change = diff_live(&old, &config(fields));
        assert_eq!(
            (change.applied.as_slice(), change.needs_restart.as_slice()),
            (applied, restart),
            "{fields}"
        );
        let kept = keep_until_restart(&old, config(fields));
        let left = diff_live(&kept, &config(fields));
        assert_eq!((left.applied.as_slice(), left.needs_restart.as_slice()), (&[][..], restart), "{fields}");
    }
}

#[test]
fn the_effect_of_every_setting_is_as_documented() {
    let restart: Vec<&str> = diff_live(&config(""), &config(include_str!("every_field.yaml"))).needs_restart;
    // The sample has the defaults of these settings, or only a flag sets them.
    let same =
        ["--master", "healthzBindAddress", "metricsBindAddress", "logging.format", "iptables.masqueradeBit"];
    for setting in table().settings() {
        let needs_restart = setting.effect == portway_config::Effect::Restart && !same.contains(&setting.path)
            // The sample has five seconds, which is the default.
            && setting.path != "logging.flushFrequency";
        assert_eq!(restart.contains(&setting.path), needs_restart, "{}", setting.path);
    }
}
