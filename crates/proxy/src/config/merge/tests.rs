//! Tests of `merge`.

use super::*;
use crate::config::{API_VERSION, KIND, LocalDetection, LogFormat, parse};
use clap::{CommandFactory, Parser};
use std::time::Duration;

fn flags(args: &[&str]) -> ProxyFlags {
    ProxyFlags::try_parse_from(std::iter::once("kube-proxy").chain(args.iter().copied()))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn file(body: &str) -> Typed {
    parse("c", &format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}")).expect("parses")
}

fn by_flags(args: &[&str]) -> (Config, Vec<IgnoredFlag>) {
    let (config, warnings) = merge(&flags(args), None).unwrap_or_else(|errors| panic!("{errors:?}"));
    (config, warnings.ignored_flags)
}

fn with_file(args: &[&str], body: &str) -> (Config, Vec<IgnoredFlag>) {
    let (config, warnings) =
        merge(&flags(args), Some(file(body))).unwrap_or_else(|errors| panic!("{errors:?}"));
    (config, warnings.ignored_flags)
}

#[test]
fn what_has_no_effect_is_named() {
    let body = "\
configSyncPeriod: 15m0s
enableProfiling: false
portRange: \"\"
winkernel: {enableDSR: true}
nftables: {masqueradBit: 3}
";
    let (_, warnings) = merge(&flags(&["--vmodule=a=1"]), Some(file(body))).expect("valid");
    assert_eq!(warnings.unused, ["configSyncPeriod", "--vmodule", "winkernel.enableDSR"]);
    assert_eq!(warnings.mistakes.len(), 1);
    assert!(warnings.without_mode);
    let (_, warnings) = merge(&flags(&["--vmodule=a=1", "--proxy-mode=iptables"]), None).expect("valid");
    assert_eq!(warnings.unused, ["--vmodule"]);
    assert!(!warnings.without_mode);
}

#[test]
fn no_flags_and_an_empty_file_mean_the_same() {
    assert_eq!(by_flags(&[]), with_file(&[], ""));
}

#[test]
fn flags_set_the_same_settings_as_fields() {
    let (config, ignored) = by_flags(&[
        "--cluster-cidr=10.244.0.0/16",
        "--masquerade-all",
        "--nodeport-addresses=10.0.0.0/8",
        "--nftables-masquerade-bit=9",
        "--iptables-sync-period=45s",
        "--conntrack-udp-timeout=31s",
        "--healthz-bind-address=0.0.0.0:7",
        "--metrics-bind-address=",
        "--master=https://api:6443",
        "--hostname-override=Node-1",
    ]);
    assert_eq!(ignored, []);
    assert!(config.masquerade().all);
    assert_eq!(config.masquerade().bit, 9);
    assert_eq!(config.sync().period, Duration::from_secs(45));
    assert_eq!(config.conntrack.udp, Some(Duration::from_secs(31)));
    assert_eq!(config.healthz, Some("0.0.0.0:7".parse().expect("an address")));
    assert_eq!(config.metrics, None);
    assert_eq!(config.client.master.as_deref(), Some("https://api:6443"));
    assert_eq!(config.hostname_override.as_deref(), Some("node-1"));
    assert!(matches!(config.local_detection, LocalDetection::ClusterCidr(cidrs) if cidrs.len() == 1));
    assert_eq!(config.node_port_addresses.cidrs.len(), 1);
}

#[test]
fn errors_on_the_command_line_name_the_flag() {
    let errors = merge(
        &flags(&[
            "--cluster-cidr=ten",
            "--proxy-mode=userland",
            "--userspace-udp-idle-timeout=0",
            "--userspace-connect-attempts=-1",
            "--nftables-sync-period=0",
            "--detect-local-mode=BridgeInterface",
        ]),
        None,
    )
    .expect_err("must be rejected");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            r#"--proxy-mode: "userland" is not a proxy mode: this release has nftables, iptables, ipvs and userspace"#,
            r#"--nftables-sync-period: "0" must be greater than zero"#,
            r#"--userspace-connect-attempts: "-1" must be between 1 and 100"#,
            r#"--userspace-udp-idle-timeout: "0" must be greater than zero"#,
            r#"--detect-local-mode: "BridgeInterface" needs --pod-bridge-interface"#,
        ]
    );
    let errors = merge(&flags(&["--cluster-cidr=ten"]), None).expect_err("must be rejected");
    assert!(errors[0].to_string().starts_with("--cluster-cidr: \"ten\" is not a range"), "{errors:?}");
}

#[test]
fn deprecated_port_flags_still_apply() {
    let healthz = |args: &[&str]| by_flags(args).0.healthz.map(|address| address.to_string());
    assert_eq!(healthz(&["--healthz-port=0"]), None);
    assert_eq!(healthz(&["--healthz-port=99"]).as_deref(), Some("0.0.0.0:99"));
    assert_eq!(healthz(&["--healthz-port=99", "--bind-address=::"]).as_deref(), Some("[::]:99"));
    assert_eq!(
        healthz(&["--healthz-port=99", "--healthz-bind-address=10.0.0.1"]).as_deref(),
        Some("10.0.0.1:99")
    );
    assert_eq!(
        healthz(&["--healthz-port=99", "--healthz-bind-address=10.0.0.1:7"]).as_deref(),
        Some("10.0.0.1:7")
    );
    let (config, _) = by_flags(&["--metrics-port=99"]);
    assert_eq!(config.metrics, Some("127.0.0.1:99".parse().expect("an address")));
}

#[test]
fn with_a_file_few_flags_apply_and_the_others_are_reported() {
    let (config, ignored) = with_file(
        &[
            "--config=c",
            "--cluster-cidr=10.9.0.0/16",
            "--masquerade-all",
            "--hostname-override=flag",
            "--v=4",
            "--vmodule=a=1",
            "--logging-format=json",
            "--master=https://api",
        ],
        "clusterCIDR: 10.244.0.0/16\nhostnameOverride: file\nlogging: {verbosity: 1, vmodule: [{filePattern: b, verbosity: 2}]}",
    );
    assert_eq!(config.hostname_override.as_deref(), Some("flag"));
    assert_eq!((config.logging.verbosity, config.logging.format), (4, LogFormat::Json));
    assert_eq!(config.logging.vmodule, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(config.client.master.as_deref(), Some("https://api"));
    assert!(!config.masquerade().all);
    assert!(
        matches!(config.local_detection, LocalDetection::ClusterCidr(c) if c[0].to_string() == "10.244.0.0/16")
    );
    let messages: Vec<String> = ignored.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "--masquerade-all has no effect together with --config: set nftables.masqueradeAll in the file instead",
            "--cluster-cidr has no effect together with --config: set clusterCIDR in the file instead",
        ]
    );
}

#[test]
fn with_a_file_every_flag_applies_or_is_reported() {
    let no_field = [
        "config",
        "write-config-to",
        "check-config",
        "manifests",
        "cleanup",
        "init-only",
        "version",
        "master",
        "help",
    ];
    for arg in ProxyFlags::command().get_arguments() {
        let Some(long) = arg.get_long().filter(|long| !no_field.contains(long)) else { continue };
        let sample = ["json", "true", "1", "1s", "A=true", "a=1"].into_iter().find_map(|value| {
            ProxyFlags::try_parse_from(["kube-proxy".to_owned(), format!("--{long}={value}")]).ok()
        });
        let sample = sample.unwrap_or_else(|| panic!("no value fits --{long}"));
        let flag = format!("--{long}");
        let setting = table().settings().iter().find(|setting| setting.flag_name() == Some(&flag));
        let setting = setting.unwrap_or_else(|| panic!("{flag} sets nothing"));
        assert!(sample.settings.has(setting.path), "{flag}");
        let (_, warnings) =
            merge(&sample, Some(file(""))).unwrap_or_else(|errors| panic!("{flag}: {errors:?}"));
        let reported = warnings.ignored_flags.iter().any(|ignored| ignored.flag == flag);
        assert_ne!(reported, setting.with_file, "{flag}");
    }
}

#[test]
fn flags_of_other_modes_are_reported() {
    let names = |args: &[&str]| -> Vec<&'static str> { by_flags(args).1.iter().map(|i| i.flag).collect() };
    assert_eq!(
        names(&["--proxy-mode=nftables", "--ipvs-scheduler=rr", "--iptables-localhost-nodeports"]),
        ["--iptables-localhost-nodeports", "--ipvs-scheduler"]
    );
    assert!(names(&["--iptables-localhost-nodeports=false"]).is_empty());
    assert!(names(&["--iptables-sync-period=5s", "--iptables-masquerade-bit=4"]).is_empty());
    assert_eq!(by_flags(&["--iptables-masquerade-bit=4"]).0.masquerade().bit, 4);
    assert_eq!(
        names(&["--iptables-sync-period=5s", "--nftables-sync-period=6s"]),
        ["--iptables-sync-period"]
    );
    assert_eq!(
        names(&["--proxy-mode=nftables", "--iptables-masquerade-bit=4"]),
        ["--iptables-masquerade-bit"]
    );
    // Flags of the configured mode are not reported.
    let iptables = ["--proxy-mode=iptables", "--iptables-localhost-nodeports=false", "--ipvs-strict-arp"];
    assert_eq!(names(&iptables), ["--ipvs-strict-arp"]);
    let ipvs = [
        "--proxy-mode=ipvs",
        "--ipvs-scheduler=lc",
        "--iptables-masquerade-bit=4",
        "--iptables-sync-period=5s",
    ];
    assert_eq!(names(&ipvs), ["--iptables-sync-period"]);
    assert_eq!(by_flags(&ipvs).0.masquerade().bit, 4);
    assert_eq!(names(&["--userspace-balancing=round-robin"]), ["--userspace-balancing"]);
    let userspace = [
        "--proxy-mode=userspace",
        "--userspace-stop-timeout=5s",
        "--iptables-masquerade-bit=4",
        "--iptables-sync-period=5s",
        "--ipvs-scheduler=lc",
    ];
    assert_eq!(names(&userspace), ["--iptables-sync-period", "--ipvs-scheduler"]);
    assert_eq!(by_flags(&userspace).0.masquerade().bit, 4);
}

#[test]
fn userspace_flags_set_the_same_settings_as_the_section() {
    let (by_flags, ignored) = by_flags(&[
        "--proxy-mode=userspace",
        "--userspace-balancing=least-connections",
        "--userspace-connect-timeout=250ms",
        "--userspace-connect-attempts=2",
        "--userspace-drain-timeout=0",
        "--userspace-stop-timeout=1m",
        "--userspace-udp-idle-timeout=30s",
        "--userspace-max-udp-sessions=1000000",
        "--userspace-sync-period=1m",
        "--userspace-min-sync-period=3s",
    ]);
    assert_eq!(ignored, []);
    let section = "{balancing: least-connections, connectTimeout: 250ms, connectAttempts: 2, drainTimeout: 0s, \
        stopTimeout: 1m, udpIdleTimeout: 30s, maxUDPSessions: 1000000, syncPeriod: 1m, minSyncPeriod: 3s}";
    let (by_file, _) = with_file(&[], &format!("mode: userspace\nuserspace: {section}"));
    assert_eq!(by_flags, by_file);
    assert_ne!(by_flags.userspace.balancing, portway_dataplane::Balancing::default());
    assert_eq!(by_flags.sync().period, Duration::from_secs(60));
}

#[test]
fn the_defaults_in_the_help_are_the_actual_defaults() {
    let mut args = Vec::new();
    for arg in ProxyFlags::command().get_arguments() {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let default = help.split_once("[default: ").and_then(|(_, rest)| rest.strip_suffix(']'));
        let described = |default: &str| default.contains("none") || default.contains(' ');
        let default = default.filter(|default| !described(default));
        args.extend(arg.get_long().zip(default).map(|(flag, default)| format!("--{flag}={default}")));
    }
    assert!(args.len() > 25, "{args:?}");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert_eq!(by_flags(&args).0, by_flags(&[]).0);
}
