//! Tests of `sysctl`.

use super::*;

fn defaults() -> ConntrackSettings {
    ConntrackSettings {
        max_per_core: 32768,
        min: 131_072,
        tcp_established: Some(ConntrackSettings::DEFAULT_TCP_ESTABLISHED),
        tcp_close_wait: Some(ConntrackSettings::DEFAULT_TCP_CLOSE_WAIT),
        tcp_be_liberal: false,
        udp: None,
        udp_stream: None,
    }
}

/// A kernel after boot, with 64 Ki entries.
fn booted() -> Current {
    BTreeMap::from([
        (Setting::Max, 65536),
        (Setting::HashSize, 16384),
        (Setting::TcpEstablished, 432_000),
        (Setting::TcpCloseWait, 60),
        (Setting::TcpBeLiberal, 0),
        (Setting::Udp, 30),
        (Setting::UdpStream, 120),
    ])
}

fn written(want: &ConntrackSettings, cores: usize) -> Vec<(Setting, u64)> {
    plan(&booted(), want, cores).into_iter().map(|write| (write.setting, write.value)).collect()
}

#[test]
fn the_table_is_only_made_larger_and_timeouts_are_set() {
    // The kernel's timeout of established connections is five days, and becomes one.
    let changed = [
        (Setting::Max, 131_072),
        (Setting::HashSize, 32768),
        (Setting::TcpEstablished, 86_400),
        (Setting::TcpCloseWait, 3600),
    ];
    assert_eq!(written(&defaults(), 2), changed);
    let enough = BTreeMap::from([
        (Setting::Max, 1_000_000),
        (Setting::HashSize, 1_000_000),
        (Setting::TcpEstablished, 86400),
        (Setting::TcpCloseWait, 3600),
    ]);
    assert_eq!(plan(&enough, &defaults(), 2), []);
}

#[test]
fn explicit_values_raise_or_lower_sysctls() {
    let want = ConntrackSettings {
        max_per_core: 0,
        tcp_established: Some(Duration::from_secs(600)),
        tcp_close_wait: None,
        tcp_be_liberal: true,
        udp: Some(Duration::from_secs(10)),
        udp_stream: Some(Duration::from_secs(120)),
        ..defaults()
    };
    assert_eq!(
        written(&want, 64),
        [(Setting::TcpEstablished, 600), (Setting::TcpBeLiberal, 1), (Setting::Udp, 10)]
    );
}

#[test]
fn the_table_size_grows_with_the_cores_up_to_a_limit() {
    let size = |want: ConntrackSettings, cores| table_size(&want, cores);
    assert_eq!(size(defaults(), 1), Some(131_072));
    assert_eq!(size(defaults(), 8), Some(262_144));
    assert_eq!(size(defaults(), 1000), Some(1_048_576));
    assert_eq!(size(ConntrackSettings { min: 2_000_000, ..defaults() }, 1000), Some(2_000_000));
    assert_eq!(size(ConntrackSettings { max_per_core: 0, ..defaults() }, 8), None);
    assert_eq!(size(defaults(), usize::MAX), Some(1_048_576));
}

#[test]
fn unreadable_sysctls_are_written_anyway() {
    let writes = plan(&Current::new(), &defaults(), 1);
    assert_eq!(writes.len(), 4);
    assert!(writes.iter().all(|write| write.was.is_none()));
}

#[test]
fn cpu_lists_are_counted() {
    for (list, count) in
        [("0\n", Some(1)), ("0-3\n", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("3-1", None)]
    {
        assert_eq!(count_cpus(list), count, "{list:?}");
    }
}

/// A temporary directory for one test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("portway-sysctl-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        Scratch(root)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn after_apply_the_next_plan_is_empty() {
    let scratch = Scratch::new("apply");
    for (setting, value) in booted() {
        scratch.file(setting.path(), &format!("{value}\n"));
    }
    scratch.file("sys/devices/system/cpu/online", "0-15\n");
    scratch.file("proc/self/oom_score_adj", "0\n");
    let kernel = Kernel::under(&scratch.0);
    assert_eq!(kernel.read(), booted());
    assert_eq!(kernel.cores(), 16);
    let writes = plan(&kernel.read(), &defaults(), kernel.cores());
    let report = kernel.apply(&writes);
    assert_eq!((report.written.as_slice(), report.refused.len()), (writes.as_slice(), 0));
    assert_eq!(kernel.read()[&Setting::Max], 16 * 32768);
    assert_eq!(plan(&kernel.read(), &defaults(), kernel.cores()), []);
    kernel.set_oom_score_adj(-999).expect("written");
    assert_eq!(fs::read_to_string(scratch.0.join("proc/self/oom_score_adj")).expect("a file"), "-999");
}

#[test]
fn a_failed_write_is_reported_and_the_others_are_made() {
    let scratch = Scratch::new("refused");
    // A directory instead of the file cannot be written, not even by root.
    scratch.file(&format!("{}/x", Setting::Max.path()), "");
    scratch.file(Setting::TcpCloseWait.path(), "60");
    let kernel = Kernel::under(&scratch.0);
    let write = |setting, was, value| Write { setting, was, value };
    let report = kernel.apply(&[
        write(Setting::Max, Some(65536), 131_072),
        write(Setting::Udp, None, 10),
        write(Setting::TcpCloseWait, Some(60), 3600),
    ]);
    assert_eq!(report.written, [write(Setting::TcpCloseWait, Some(60), 3600)]);
    let messages: Vec<String> = report.refused.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 2);
    let begin = "nf_conntrack_max could not be set to 131072, it stays 65536: ";
    let end = "; set it on the host, or keep the kernel's value with --conntrack-max-per-core=0";
    assert!(messages[0].starts_with(begin) && messages[0].ends_with(end), "{messages:?}");
    assert!(messages[1].starts_with("nf_conntrack_udp_timeout could not be set to 10: "), "{messages:?}");
    assert!(!scratch.0.join(Setting::Udp.path()).exists(), "a file was created");
}
