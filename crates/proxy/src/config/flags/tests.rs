//! Tests of `flags`.

use super::*;
use clap::CommandFactory;

fn flags(args: &[&str]) -> ProxyFlags {
    let args = std::iter::once("kube-proxy").chain(args.iter().copied()).map(OsString::from);
    ProxyFlags::try_parse_from(normalize_args(args)).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(args: &[&str]) -> String {
    let args = std::iter::once("kube-proxy").chain(args.iter().copied());
    ProxyFlags::try_parse_from(args).expect_err("must be refused").to_string()
}

#[test]
fn the_command_is_well_formed() {
    ProxyFlags::command().debug_assert();
}

#[test]
fn switches_take_an_optional_value() {
    assert_eq!(flags(&[]).masquerade_all, None);
    for on in ["--masquerade-all", "--masquerade-all=true", "--masquerade-all=1", "--masquerade-all=T"] {
        assert_eq!(flags(&[on]).masquerade_all, Some(true), "{on}");
    }
    for off in ["--masquerade-all=false", "--masquerade-all=0", "--masquerade-all=False"] {
        assert_eq!(flags(&[off]).masquerade_all, Some(false), "{off}");
    }
    assert!(refused(&["--masquerade-all=maybe"]).contains("neither true nor false"));
    // pflag takes what follows a switch for an argument, not for its value.
    assert!(ProxyFlags::try_parse_from(["kube-proxy", "--masquerade-all", "false"]).is_err());
}

#[test]
fn lists_grow_by_commas_and_by_repetition() {
    let flags =
        flags(&["--nodeport-addresses=10.0.0.0/8,fd00::/8", "--nodeport-addresses", "192.168.0.0/16"]);
    assert_eq!(flags.nodeport_addresses, ["10.0.0.0/8", "fd00::/8", "192.168.0.0/16"]);
    let flags = self::flags(&["--feature-gates=A=true,B=false", "--feature-gates", "C=true"]);
    assert_eq!(flags.feature_gates, [("A".into(), true), ("B".into(), false), ("C".into(), true)]);
    let flags = self::flags(&["--vmodule=proxier=4,health*=5"]);
    assert_eq!(flags.vmodule, [("proxier".into(), 4), ("health*".into(), 5)]);
}

#[test]
fn the_last_of_several_values_counts() {
    assert_eq!(flags(&["--v=2", "--v=4"]).v, Some(4));
    assert_eq!(flags(&["--cluster-cidr=a", "--cluster-cidr=b,c"]).cluster_cidr.as_deref(), Some("b,c"));
}

#[test]
fn values_look_as_they_do_in_the_field() {
    for args in [&["-v=4"][..], &["-v", "4"], &["--v", "4"], &["-v4"]] {
        assert_eq!(flags(args).v, Some(4), "{args:?}");
    }
    assert_eq!(flags(&["--oom-score-adj", "-998"]).oom_score_adj, Some(-998));
    assert_eq!(flags(&["--oom-score-adj=-998"]).oom_score_adj, Some(-998));
    assert_eq!(flags(&["--iptables-sync-period=1m30s"]).iptables_sync_period, Some(Duration::from_secs(90)));
    assert!(refused(&["--iptables-sync-period=30"]).contains("lacks a unit"));
    assert_eq!(flags(&["--metrics-bind-address="]).metrics_bind_address.as_deref(), Some(""));
    assert_eq!(flags(&["--version"]).version.as_deref(), Some("true"));
    assert_eq!(flags(&["--version=raw"]).version.as_deref(), Some("raw"));
}

#[test]
fn underscores_are_dashes_in_names_only() {
    assert_eq!(flags(&["--cluster_cidr=a_b"]).cluster_cidr.as_deref(), Some("a_b"));
    assert_eq!(flags(&["--hostname_override", "a__b"]).hostname_override.as_deref(), Some("a__b"));
    let kept: Vec<OsString> = ["x_y", "--a-b", "-c_d", "--", "--e_f"].map(Into::into).to_vec();
    let args = ["x_y", "--a_b", "-c_d", "--", "--e_f"].map(OsString::from);
    assert_eq!(normalize_args(args), kept);
}

#[test]
fn a_misspelt_flag_is_answered_with_the_right_one() {
    assert!(refused(&["--cluster-cdir=x"]).contains("--cluster-cidr"));
}

#[test]
fn the_help_teaches() {
    let help = ProxyFlags::command().render_long_help().to_string();
    for heading in [
        "Configuration:",
        "Kubernetes API:",
        "Proxy:",
        "Mode nftables:",
        "Mode userspace:",
        "Connection tracking:",
        "Examples:",
    ] {
        assert!(help.contains(heading), "{heading}");
    }
    for arg in ProxyFlags::command().get_arguments().filter(|arg| !arg.is_hide_set()) {
        let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(text.len() > 10, "{} has no help", arg.get_id());
    }
}

#[test]
fn every_flag_of_kube_proxy_is_there() {
    // `kube-proxy --help`, v1.36, without the two leftovers of cAdvisor (--boot-id-file, --machine-id-file) and the
    // alpha options of its log streams.
    let upstream = "bind-address bind-address-hard-fail cleanup cluster-cidr config config-sync-period \
        conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait \
        conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode \
        feature-gates healthz-bind-address healthz-port hostname-override init-only iptables-localhost-nodeports \
        iptables-masquerade-bit iptables-min-sync-period iptables-sync-period ipvs-exclude-cidrs \
        ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout \
        ipvs-udp-timeout kube-api-burst kube-api-content-type kube-api-qps kubeconfig log-flush-frequency \
        logging-format masquerade-all master metrics-bind-address metrics-port nodeport-addresses oom-score-adj \
        pod-bridge-interface pod-interface-name-prefix profiling proxy-mode show-hidden-metrics-for-version v \
        version vmodule write-config-to";
    let command = ProxyFlags::command();
    let ours: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
    for flag in upstream.split_whitespace() {
        assert!(ours.contains(&flag), "--{flag} is missing");
    }
}

#[test]
fn a_flag_says_every_field_of_userspace() {
    let section = format!("{:?}", flags(&[]).typed().config.userspace);
    let fields = section.matches(": None").count();
    let command = ProxyFlags::command();
    let ours: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
    let ours: Vec<&&str> = ours.iter().filter(|flag| flag.starts_with("userspace-")).collect();
    assert_eq!(ours.len(), fields, "{ours:?}\n{section}");
}
