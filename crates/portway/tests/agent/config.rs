//! The configuration file and the command line (docs/semantics.md, section 9).

use crate::agent_lab::{AgentLab, PORTWAY, wait_timeout};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Probe, eventually};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

pub(crate) const TESTS: &[Test] = &[
    ("an_invalid_file_ends_the_process_with_all_errors", invalid_file),
    ("an_unknown_field_is_reported_and_the_rest_is_used", unknown_field),
    ("check_config_is_strict", check_config),
    ("an_invalid_flag_ends_the_process_with_an_error", invalid_flag),
    ("flags_ignored_because_of_a_file_are_logged", ignored_flags),
    ("a_changed_file_is_applied_while_running", changed_file),
    ("a_changed_file_is_applied_while_manifests_keep_changing", changed_file_and_manifests),
    ("an_invalid_change_of_the_file_keeps_the_old_configuration", invalid_change),
    ("changes_that_need_a_restart_are_logged_and_not_applied", needs_restart),
    ("write_config_to_writes_a_file_that_can_be_read_again", round_trip),
    ("version", version),
    ("each_verbosity_adds_lines", verbosities),
    ("json_lines_have_the_keys_of_klog", json_lines),
    ("init_only_sets_sysctls_and_programs_no_rules", init_only),
    ("the_binary_called_kube_proxy_takes_its_flags", kube_proxy),
];

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Fields after the two lines of the header, and the line and text of each error in them; line 0 if it varies.
type InvalidFile = (&'static str, &'static [(u64, &'static str)]);

/// All errors of a file are reported at once, with their lines. The unit tests of the configuration cover which values
/// are errors.
const INVALID_FILES: &[InvalidFile] = &[
    (
        "bindAddress: here\nconntrack:\n  min: [1]\n  maxPerCore: many\nclusterCdir: x\n",
        &[
            (3, "bindAddress: \"here\""),
            (7, "clusterCdir"),
            (5, "conntrack.min: should be a whole number, but is a list"),
            (6, "conntrack.maxPerCore: should be a whole number, but is text"),
        ],
    ),
    (
        "bindAddress: here\nclusterCIDR: 10.0.0.0/33\n",
        &[(3, "bindAddress: \"here\""), (4, "clusterCIDR: \"10.0.0.0/33\"")],
    ),
    ("conntrack: [\n", &[(0, "cannot be read")]),
];

fn invalid_file(lab: &mut AgentLab) -> Outcome {
    let file = lab.path("config.yaml").display().to_string();
    for (fields, errors) in INVALID_FILES {
        lab.write("config.yaml", &format!("{HEADER}{fields}"));
        let output = proxy(lab, &[&format!("--config={file}")])?;
        let message = stderr(&output);
        ensure(output.status.code() == Some(1), || format!("{fields}{}: {message}", output.status))?;
        let count = format!("{} mistake(s)", errors.len());
        ensure(message.contains(&count), || format!("no {count:?} in:\n{message}"))?;
        for (line, text) in *errors {
            let error = if *line > 0 { format!("{file}:{line}: {text}") } else { (*text).to_owned() };
            ensure(message.contains(&error), || format!("no {error:?} in:\n{message}"))?;
        }
    }
    let output = proxy(lab, &["--config=/nowhere/config.yaml"])?;
    let message = stderr(&output);
    ensure(output.status.code() == Some(1) && message.contains("/nowhere/config.yaml"), || message.clone())
}

fn invalid_flag(lab: &mut AgentLab) -> Outcome {
    for (flag, words) in [
        ("--masquerade-al", &["--masquerade-al", "--masquerade-all"][..]),
        ("--cluster-cidr=10.0.0.0/40", &["--cluster-cidr", "10.0.0.0/40"]),
        ("--kubeconfig=/nowhere", &["kubeconfig /nowhere", "No such file"]),
    ] {
        let output = proxy(lab, &[flag])?;
        let message = stderr(&output);
        ensure(!output.status.success(), || format!("{flag} was accepted"))?;
        ensure(words.iter().all(|word| message.contains(word)), || {
            format!("{flag}: no {words:?} in:\n{message}")
        })?;
        ensure(message.matches("No such file").count() <= 1, || format!("the cause is repeated: {message}"))?;
    }
    Ok(())
}

fn ignored_flags(lab: &mut AgentLab) -> Outcome {
    lab.write("config.yaml", &format!("{HEADER}oomScoreAdj: 5\n"));
    let config = format!("--config={}", lab.path("config.yaml").display());
    lab.start(&[&config, "--cluster-cidr=10.244.0.0/16", "--masquerade-all"])?;
    for (flag, field) in [("--cluster-cidr", "clusterCIDR"), ("--masquerade-all", "nftables.masqueradeAll")] {
        lab.logged(&["WARN", flag, "has no effect together with --config", field])?;
    }
    lab.web_works()?;
    let log = lab.agent()?.log().clone();
    let effective = ["--hostname-override", "--manifests", "--v"];
    let warned = |flag: &&str| log.contains(&format!("{flag} has no effect"));
    ensure(!effective.iter().any(warned), || "flags that have an effect were logged as ignored".to_owned())?;
    let config = lab.status("/configz")?.json()?;
    ensure(config["kubeproxy.config.k8s.io"]["clusterCIDR"] == "", || config.to_string())
}

fn unknown_field(lab: &mut AgentLab) -> Outcome {
    let fields =
        "futureField: {a: [1]}\nmode: iptables\noomScoreAdjust: 3\nmode: nftables\nconfigSyncPeriod: 15m0s\n";
    lab.write("config.yaml", &format!("{HEADER}{fields}"));
    let file = lab.path("config.yaml").display().to_string();
    lab.start(&[&format!("--config={file}")])?;
    for line in [
        format!("{file}:3: futureField: unknown field"),
        format!("{file}:5: oomScoreAdjust: unknown field, did you mean \"oomScoreAdj\"?"),
        format!("{file}:6: mode: is set twice, first on line 4; the last value applies"),
    ] {
        lab.logged(&["WARN", &line])?;
    }
    lab.logged(&["INFO", "without effect in Portway: configSyncPeriod"])?;
    lab.web_works()?;
    let page = lab.status("/proxyMode")?;
    ensure(page.body == "nftables", || page.body)
}

fn verbosities(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--v=2"])?;
    lab.logged(&["INFO", "synced 1 Services, 4 endpoints in "])?;
    let pod = lab.pod_ips("pod1a")[0];
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &[pod]));
    let removed = format!("removed=\"endpoint TCP {}:8080\"", lab.pod_ips("pod1b")[0]);
    lab.logged(&["INFO", "Service changed", "default/web", &removed])?;
    let log = lab.stop()?;
    ensure(!log.contains("full="), || "verbosity 2 has lines of verbosity 4".to_owned())?;
    lab.start(&["--v=0"])?;
    lab.logged(&["INFO", "synced 1 Services, 3 endpoints in "])?;
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &[]));
    lab.reaches_no_pod("10.96.0.1:80".parse()?)?;
    let log = lab.stop()?;
    ensure(!log.contains("Service changed"), || "verbosity 0 has lines of verbosity 2".to_owned())?;
    lab.start(&["--v=6"])?;
    lab.logged(&["event: Service default/web changed"])?;
    lab.logged(&["event: EndpointSlice list is complete"])?;
    lab.logged(&["syncing", "services=\"default/web\""])?;
    let log = lab.stop()?;
    lab.start(&["--v=4"])?;
    lab.logged(&["syncing", "services=\"default/web\""])?;
    ensure(log.contains("event: ") && !lab.stop()?.contains("event: "), || {
        "verbosity 4 has lines of verbosity 6".to_owned()
    })
}

fn json_lines(lab: &mut AgentLab) -> Outcome {
    for (flag, words) in [("--no-such-flag", "unexpected argument"), ("--cluster-cidr=x", "1 mistake(s)")] {
        let output = proxy(lab, &["--logging-format=json", flag])?;
        let line: serde_json::Value = serde_json::from_str(&stderr(&output))?;
        let right = line["level"] == "error" && line["msg"].as_str().is_some_and(|m| m.contains(words));
        ensure(right && output.status.code() == Some(1), || line.to_string())?;
    }
    lab.start(&["--logging-format=json", "--vmodule=a=1"])?;
    lab.logged(&["\"msg\":\"synced 1 Services"])?;
    let log = lab.stop()?;
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(&line.text)?;
        let has = |key: &str| line.get(key).is_some();
        let right = has("ts") && has("caller") && has("msg") && has("v") != has("level");
        ensure(right && line["ts"].is_f64(), || line.to_string())?;
    }
    Ok(())
}

fn check_config(lab: &mut AgentLab) -> Outcome {
    let file = lab.path("config.yaml").display().to_string();
    let check = |fields: &str, status: i32, words: &[&str]| -> Outcome {
        lab.write("config.yaml", &format!("{HEADER}{fields}"));
        let output = proxy(lab, &[&format!("--config={file}"), "--check-config"])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        let found = words.iter().all(|word| text.contains(word));
        ensure(output.status.code() == Some(status) && found, || {
            format!("{fields}: {}\n{text}", output.status)
        })
    };
    check("mode: ipvs\nportRange: 1-2\n", 0, &["the configuration is valid, mode ipvs", "portRange"])?;
    check(
        "modes: ipvs\nmode: ''\nmode: ''\n",
        1,
        &["2 mistake(s)", "did you mean \"mode\"", "is set twice"],
    )?;
    check("mode: ipv\n", 1, &["1 mistake(s)", "is not a proxy mode"])
}

/// Waits until connections of a pod to a cluster IP are masqueraded, or no longer are.
fn wait_for_masquerading(lab: &AgentLab, masqueraded: bool) -> Outcome {
    let own = lab.pod_ips("pod1a");
    let attempt = || {
        let outcome =
            Probe::tcp(lab.pod("pod1a"), "10.96.0.1:80".parse().map_err(|e| format!("{e}"))?).count(8).run();
        // Connections of a pod to itself are always masqueraded.
        let sources = outcome.answers.get("pod1b").map(|a| a.sources.clone()).unwrap_or_default();
        let is_own = |ip: &IpAddr| own.contains(ip);
        let right = if masqueraded { !sources.iter().any(is_own) } else { sources.iter().all(is_own) };
        if outcome.all_answered() && !sources.is_empty() && right { Ok(()) } else { Err(outcome.to_string()) }
    };
    eventually(wait_timeout(), attempt)?;
    Ok(())
}

fn changed_file(lab: &mut AgentLab) -> Outcome {
    let cidrs = "clusterCIDR: 10.244.0.0/16,fd10:244::/32\n";
    lab.write("config.yaml", &format!("{HEADER}{cidrs}"));
    let config = format!("--config={}", lab.path("config.yaml").display());
    lab.start(&[&config])?;
    lab.web_works()?;
    wait_for_masquerading(lab, false)?;
    lab.write("config.yaml", &format!("{HEADER}{cidrs}nftables: {{masqueradeAll: true}}\n"));
    lab.logged(&["configuration applied", "nftables.masqueradeAll"])?;
    wait_for_masquerading(lab, true)?;
    let config = lab.status("/configz")?.json()?;
    let shown = &config["kubeproxy.config.k8s.io"]["nftables"]["masqueradeAll"];
    ensure(*shown == true, || format!("/configz shows {shown}"))
}

fn changed_file_and_manifests(lab: &mut AgentLab) -> Outcome {
    lab.write("config.yaml", HEADER);
    let config = format!("--config={}", lab.path("config.yaml").display());
    lab.start(&[&config])?;
    lab.web_works()?;
    lab.write("config.yaml", &format!("{HEADER}nftables: {{masqueradeAll: true}}\n"));
    let pods = ["pod1a", "pod1b"].map(|pod| lab.pod_ips(pod)[0]);
    let mut writes = 0;
    eventually(wait_timeout(), || {
        writes += 1;
        lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &pods[..1 + writes % 2]));
        let applied = lab.agent().is_ok_and(|agent| agent.log().contains("configuration applied"));
        if applied { Ok(()) } else { Err("the changed file is not applied while manifests change") }
    })?;
    Ok(())
}

fn invalid_change(lab: &mut AgentLab) -> Outcome {
    let good = format!("{HEADER}nftables: {{masqueradeAll: true}}\n");
    lab.write("config.yaml", &good);
    let file = lab.path("config.yaml").display().to_string();
    lab.start(&[&format!("--config={file}")])?;
    wait_for_masquerading(lab, true)?;
    lab.write("config.yaml", &format!("{HEADER}nftables: {{masqueradeAll: 1}}\n"));
    let error = format!("{file}:3: nftables.masqueradeAll: should be true or false");
    lab.logged(&["ERROR", "the changed configuration is not used", &error])?;
    wait_for_masquerading(lab, true)?;
    let status = lab.agent()?.status()?;
    ensure(status.is_none(), || format!("the agent exited: {status:?}"))?;
    lab.write("config.yaml", &format!("{HEADER}nftables: {{masqueradeAll: false}}\n"));
    wait_for_masquerading(lab, false)
}

fn needs_restart(lab: &mut AgentLab) -> Outcome {
    lab.write("config.yaml", HEADER);
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    lab.web_works()?;
    let mut wanted = lab.status("/configz")?.json()?;
    let change = "healthzBindAddress: 0.0.0.0:10300\nbindAddress: 192.168.50.11\nfeatureGates: {WatchList: true}\n\
                  nftables: {masqueradeBit: 20}\noomScoreAdj: 7\n";
    lab.write("config.yaml", &format!("{HEADER}{change}"));
    for field in ["healthzBindAddress", "bindAddress", "featureGates", "nftables.masqueradeBit"] {
        lab.logged(&["WARN", &format!("field=\"{field}\""), "takes effect when portway is started again"])?;
    }
    lab.logged(&["configuration applied", "oomScoreAdj"])?;
    // The status page and the nftables table have the configuration in force.
    wanted["kubeproxy.config.k8s.io"]["oomScoreAdj"] = 7.into();
    eventually(wait_timeout(), || {
        let shown = lab.status("/configz")?.json()?;
        if shown == wanted { Ok(()) } else { Err(format!("/configz shows\n{shown}\ninstead of\n{wanted}")) }
    })?;
    lab.web_works()?;
    let rules = lab.nft(&["list", "table", "ip", "portway"])?;
    ensure(rules.contains("0x00004000") && !rules.contains("0x00100000"), || {
        format!("the mark changed without a restart:\n{rules}")
    })
}

fn round_trip(lab: &mut AgentLab) -> Outcome {
    let [first, second] = ["first.yaml", "second.yaml"].map(|name| lab.path(name));
    let flags = [
        "--cluster-cidr=10.244.0.0/16,fd10:244::/32",
        "--nodeport-addresses=192.168.0.0/16",
        "--masquerade-all",
        "--conntrack-tcp-timeout-established=1h30m",
        "--metrics-bind-address=[::1]:9999",
        "--feature-gates=WatchList=true",
    ];
    let write = |path: &std::path::Path| format!("--write-config-to={}", path.display());
    let output = proxy(lab, &[&flags[..], &[&write(&first)]].concat())?;
    ensure(output.status.success(), || stderr(&output))?;
    let output = proxy(lab, &[&format!("--config={}", first.display()), &write(&second)])?;
    ensure(output.status.success(), || stderr(&output))?;
    let [first, second] = [std::fs::read_to_string(first)?, std::fs::read_to_string(second)?];
    ensure(first == second, || format!("{first}\nbecame\n{second}"))?;
    for line in [
        "clusterCIDR: 10.244.0.0/16,fd10:244::/32",
        "  masqueradeAll: true",
        "  tcpEstablishedTimeout: 1h30m",
    ] {
        ensure(first.contains(line), || format!("no {line:?} in\n{first}"))?;
    }
    let output = proxy(lab, &["--write-config-to=/nowhere/config.yaml"])?;
    let message = stderr(&output);
    ensure(output.status.code() == Some(1) && message.contains("/nowhere/config.yaml"), || message.clone())
}

fn version(lab: &mut AgentLab) -> Outcome {
    let number = env!("CARGO_PKG_VERSION");
    for arguments in [&["--version"][..], &["proxy", "--version"], &["proxy", "--version=true"]] {
        let output = lab.portway(arguments)?;
        let message = String::from_utf8_lossy(&output.stdout).to_lowercase();
        let right = output.status.success() && message.trim() == format!("portway {number}");
        ensure(right, || format!("{arguments:?}: {message}"))?;
    }
    Ok(())
}

fn init_only(lab: &mut AgentLab) -> Outcome {
    let setting = "nf_conntrack_tcp_timeout_close_wait";
    let output = proxy(lab, &["--init-only"])?;
    let message = stderr(&output);
    ensure(output.status.code() == Some(0), || format!("{}: {message}", output.status))?;
    let read = || std::fs::read_to_string(format!("/proc/sys/net/netfilter/{setting}"));
    let seconds = lab.node().run(read)?;
    ensure(seconds.trim() == "3600" || message.contains(setting), || {
        format!("{setting} is {seconds}, and the log does not name it:\n{message}")
    })?;
    let rules = lab.nft(&["list", "ruleset"])?;
    ensure(rules.is_empty(), || format!("rules were programmed:\n{rules}"))
}

fn kube_proxy(lab: &mut AgentLab) -> Outcome {
    let link = lab.path("kube-proxy");
    symlink(PORTWAY, &link)?;
    let mut command = Command::new(&link);
    command.arg("--version");
    let output = lab.run(command)?;
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success() && message.contains(env!("CARGO_PKG_VERSION")), || message.clone())?;
    // Flags with underscores and with `=true`, as kubeadm and older unit files have them.
    let mut command = Command::new(&link);
    command.args(lab.flags()).args(["--cluster_cidr=10.244.0.0/16,fd10:244::/32", "--masquerade-all=true"]);
    lab.start_as(command)?;
    lab.web_works()?;
    wait_for_masquerading(lab, true)?;
    lab.stop()?;
    let mut command = Command::new(&link);
    command.arg("--cleanup");
    let output = lab.run(command)?;
    ensure(output.status.success(), || stderr(&output))?;
    let rules = lab.nft(&["list", "ruleset"])?;
    ensure(rules.is_empty(), || format!("cleanup left rules:\n{rules}"))
}

/// Runs `portway proxy` on the node and waits for its end.
fn proxy(lab: &AgentLab, flags: &[&str]) -> Result<Output, Failed> {
    lab.portway(&[&["proxy"], flags].concat())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
