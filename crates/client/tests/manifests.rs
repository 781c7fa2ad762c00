//! A directory of manifests: everything people, editors and the kubelet do to it.

use portway_api::{EndpointSlice, Event, Node, Resource, Service, ServiceCidr};
use portway_client::{Notice, Source};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// A Service in the namespace `default`, told apart by its cluster IP.
fn service(name: &str, ip: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: {ip}\n  ports:\n  - port: 80\n"
    )
}

type Set = (Service, EndpointSlice, Node, ServiceCidr);

/// An event, in short.
#[derive(Debug)]
struct Told(String);

macro_rules! told {
    ($($resource:ident $detail:expr;)*) => {$(
        impl From<Event<$resource>> for Told {
            fn from(event: Event<$resource>) -> Told {
                Told(match event {
                    Event::Init => format!("init {}", $resource::TYPE),
                    Event::InitDone => format!("done {}", $resource::TYPE),
                    Event::Apply(object) => $detail(&object, &object.metadata().unwrap().name),
                    Event::Delete { name, .. } => format!("-{name}"),
                })
            }
        }
    )*};
}

told! {
    Service |o: &Service, name: &str| format!("+{name} {}", o.spec.clone().unwrap_or_default().cluster_ip);
    EndpointSlice |_: &EndpointSlice, name: &str| format!("+EndpointSlice {name}");
    Node |_: &Node, name: &str| format!("+Node {name}");
    ServiceCidr |_: &ServiceCidr, name: &str| format!("+ServiceCIDR {name}");
}

struct Lab {
    _root: tempfile::TempDir,
    dir: PathBuf,
    source: Source<Told>,
}

impl Lab {
    /// A directory that `prepare` fills before it is read.
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("manifests");
        fs::create_dir(&dir).unwrap();
        prepare(&dir);
        let source = Source::manifests::<Set>(&dir);
        Lab { _root: root, dir, source }
    }

    /// The same, past its first reading.
    async fn started(prepare: impl FnOnce(&Path)) -> Self {
        let mut lab = Lab::new(prepare);
        while lab.next().await != "done ServiceCIDR" {}
        lab
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
    }

    /// As editors do: a temporary file, renamed over the old one.
    fn replace(&self, name: &str, text: &str) {
        let temporary = self.dir.join(format!(".{name}.tmp"));
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.dir.join(name)).unwrap();
    }

    async fn next(&mut self) -> String {
        let notice =
            timeout(PATIENCE, self.source.next()).await.expect("no notice came").expect("the source ended");
        self.print(notice)
    }

    async fn take(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.next().await);
        }
        all
    }

    /// Makes a change that has nothing to do with the test and sees that it is the next to be told.
    async fn nothing_else(&mut self) {
        self.replace("zz-sentinel.yaml", &service("sentinel", "10.9.9.9"));
        assert_eq!(self.next().await, "+sentinel 10.9.9.9");
        fs::remove_file(self.dir.join("zz-sentinel.yaml")).unwrap();
        assert_eq!(self.next().await, "-sentinel");
    }

    fn print(&self, notice: Notice<Told>) -> String {
        match notice {
            Notice::Event(told) => told.0,
            Notice::Rejected(rejected) => {
                let prefix = format!("{}/", self.dir.display());
                format!("rejected {rejected}").replace(&prefix, "")
            }
            Notice::Outage(_) => "outage".into(),
            Notice::Recovered(_) => "recovered".into(),
        }
    }
}

#[tokio::test]
async fn everything_is_told_at_start() {
    let mut lab = Lab::new(|dir| {
        fs::write(dir.join("b.yaml"), service("b", "10.0.0.2") + &service("c", "10.0.0.3")).unwrap();
        fs::write(dir.join("a.json"), r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#)
            .unwrap();
        fs::write(dir.join("broken.yml"), "kind: [\n").unwrap();
        fs::write(dir.join("readme.txt"), "not a manifest").unwrap();
        fs::write(dir.join("deployment.yaml"), "apiVersion: apps/v1\nkind: Deployment\n").unwrap();
        fs::create_dir(dir.join("folder.yaml")).unwrap();
    });
    assert_eq!(lab.take(4).await, ["init Service", "init EndpointSlice", "init Node", "init ServiceCIDR"]);
    assert_eq!(lab.take(3).await, ["+Node n", "+b 10.0.0.2", "+c 10.0.0.3"]);
    let rejected = lab.next().await;
    assert!(rejected.starts_with("rejected broken.yml:"), "{rejected}");
    assert_eq!(lab.take(4).await, ["done Service", "done EndpointSlice", "done Node", "done ServiceCIDR"]);
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_file_comes_changes_and_goes() {
    let mut lab = Lab::started(|_| {}).await;
    lab.write("a.yaml", &(service("a", "10.0.0.1") + &service("b", "10.0.0.2")));
    assert_eq!(lab.take(2).await, ["+a 10.0.0.1", "+b 10.0.0.2"]);
    lab.write("a.yaml", &(service("a", "10.0.0.1") + &service("b", "10.0.0.3") + &service("c", "10.0.0.4")));
    assert_eq!(lab.take(2).await, ["+b 10.0.0.3", "+c 10.0.0.4"], "only what changed");
    lab.write("a.yaml", &service("c", "10.0.0.4"));
    assert_eq!(lab.take(2).await, ["-a", "-b"]);
    fs::remove_file(lab.dir.join("a.yaml")).unwrap();
    assert_eq!(lab.next().await, "-c");
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_rename_over_a_file_is_a_change() {
    let mut lab = Lab::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    lab.replace("a.yaml", &service("a", "10.0.0.2"));
    assert_eq!(lab.next().await, "+a 10.0.0.2");
    lab.replace("a.yaml", &service("a", "10.0.0.2"));
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_file_that_is_renamed_changes_nothing() {
    let mut lab = Lab::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    fs::rename(lab.dir.join("a.yaml"), lab.dir.join("b.yaml")).unwrap();
    lab.nothing_else().await;
    fs::rename(lab.dir.join("b.yaml"), lab.dir.join("b.disabled")).unwrap();
    assert_eq!(lab.next().await, "-a");
}

#[tokio::test]
async fn a_broken_file_keeps_what_was_good_until_it_is_mended() {
    let good = service("a", "10.0.0.1") + &service("b", "10.0.0.2");
    let mut lab = Lab::started(|dir| fs::write(dir.join("a.yaml"), &good).unwrap()).await;
    // The first document is good and new, the second is bad: the file counts as a whole.
    lab.write(
        "a.yaml",
        &(service("a", "10.0.0.9") + &service("b", "10.0.0.2").replace("port: 80", "port: \"80\"")),
    );
    let rejected = lab.next().await;
    assert!(rejected.starts_with("rejected a.yaml:16: "), "{rejected}");
    // Touched, but just as broken: told once.
    let text = fs::read(lab.dir.join("a.yaml")).unwrap();
    fs::write(lab.dir.join("a.yaml"), text).unwrap();
    lab.nothing_else().await;
    lab.write("a.yaml", &(service("a", "10.0.0.9") + &service("b", "10.0.0.2")));
    assert_eq!(lab.next().await, "+a 10.0.0.9");
    lab.nothing_else().await;
    lab.write("a.yaml", "kind: [");
    assert!(lab.next().await.starts_with("rejected a.yaml:"));
    fs::remove_file(lab.dir.join("a.yaml")).unwrap();
    assert_eq!(lab.take(2).await, ["-a", "-b"]);
}

#[tokio::test]
async fn of_two_files_the_first_counts_and_the_second_takes_over() {
    let mut lab = Lab::new(|dir| {
        fs::write(dir.join("a.yaml"), service("x", "10.0.0.1")).unwrap();
        fs::write(dir.join("b.yaml"), service("x", "10.0.0.2")).unwrap();
    });
    let dir = lab.dir.display().to_string();
    lab.take(4).await;
    assert_eq!(lab.next().await, "+x 10.0.0.1");
    let rejected = lab.next().await;
    assert_eq!(
        rejected, "rejected b.yaml: Service default/x: it is also in a.yaml, which comes first and counts",
        "in {dir}"
    );
    lab.take(4).await;
    lab.write("b.yaml", &service("x", "10.0.0.3"));
    lab.nothing_else().await;
    fs::remove_file(lab.dir.join("a.yaml")).unwrap();
    assert_eq!(lab.next().await, "+x 10.0.0.3");
    lab.write("0.yaml", &service("x", "10.0.0.4"));
    assert!(lab.next().await.contains("it is also in 0.yaml"));
    assert_eq!(lab.next().await, "+x 10.0.0.4");
}

#[tokio::test]
async fn a_broken_file_cannot_take_over_until_it_is_mended() {
    let mut lab = Lab::started(|dir| {
        fs::write(dir.join("a.yaml"), service("x", "10.0.0.1")).unwrap();
        fs::write(dir.join("b.yaml"), service("x", "10.0.0.2")).unwrap();
    })
    .await;
    lab.write("b.yaml", &(service("x", "10.0.0.3") + "kind: ["));
    assert!(lab.next().await.starts_with("rejected b.yaml:"));
    fs::remove_file(lab.dir.join("a.yaml")).unwrap();
    assert_eq!(lab.next().await, "-x");
    lab.write("b.yaml", &service("x", "10.0.0.2"));
    assert_eq!(lab.next().await, "+x 10.0.0.2");
    lab.nothing_else().await;
}

/// As the kubelet mounts a ConfigMap: `a.yaml → ..data/a.yaml`, `..data → ..1`, swapped by a rename.
#[tokio::test]
async fn a_config_map_is_swapped_as_a_whole() {
    let version = |dir: &Path, number: u32, files: &[(&str, String)]| {
        let folder = format!("..{number}");
        fs::create_dir(dir.join(&folder)).unwrap();
        for (name, text) in files {
            fs::write(dir.join(&folder).join(name), text).unwrap();
        }
        symlink(&folder, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    };
    let mut lab = Lab::new(|dir| {
        version(dir, 1, &[("a.yaml", service("a", "10.0.0.1")), ("b.yaml", service("b", "10.0.0.2"))]);
        symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
        symlink("..data/b.yaml", dir.join("b.yaml")).unwrap();
    });
    lab.take(4).await;
    assert_eq!(lab.take(2).await, ["+a 10.0.0.1", "+b 10.0.0.2"]);
    lab.take(4).await;
    // a changes, b moves into a, and c comes.
    let a = service("a", "10.0.0.9") + &service("b", "10.0.0.2");
    version(&lab.dir, 2, &[("a.yaml", a), ("c.yaml", service("c", "10.0.0.3"))]);
    fs::remove_dir_all(lab.dir.join("..1")).unwrap();
    symlink("..data/c.yaml", lab.dir.join("c.yaml")).unwrap();
    fs::remove_file(lab.dir.join("b.yaml")).unwrap();
    assert_eq!(lab.take(2).await, ["+a 10.0.0.9", "+c 10.0.0.3"]);
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_directory_that_goes_takes_nothing_with_it_and_may_come_back() {
    let text = service("a", "10.0.0.1");
    let mut lab = Lab::started(|dir| {
        fs::write(dir.join("a.yaml"), &text).unwrap();
        fs::write(dir.join("b.yaml"), service("b", "10.0.0.2")).unwrap();
    })
    .await;
    let aside = lab.dir.with_extension("aside");
    fs::rename(&lab.dir, &aside).unwrap();
    assert_eq!(lab.next().await, "outage");
    // Complete at once: made elsewhere and renamed.
    fs::remove_file(aside.join("b.yaml")).unwrap();
    fs::write(aside.join("c.yaml"), service("c", "10.0.0.3")).unwrap();
    fs::rename(&aside, &lab.dir).unwrap();
    let mut told = lab.take(3).await;
    told.sort();
    assert_eq!(told, ["+c 10.0.0.3", "-b", "recovered"]);
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_directory_that_is_removed_and_made_again_is_watched_again() {
    let mut lab = Lab::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    let parent = lab.dir.parent().unwrap().to_owned();
    for _ in 0..3 {
        fs::remove_dir_all(&lab.dir).unwrap();
        assert_eq!(lab.next().await, "outage");
        fs::create_dir(&lab.dir).unwrap();
        let mut told = lab.take(2).await;
        told.sort();
        assert_eq!(told, ["-a", "recovered"], "an empty directory means no objects");
        lab.write("a.yaml", &service("a", "10.0.0.1"));
        assert_eq!(lab.next().await, "+a 10.0.0.1");
    }
    assert!(parent.exists());
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_directory_may_come_after_us_with_all_the_folders_above_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("x/y/manifests");
    let source = Source::manifests::<Set>(&dir);
    let mut lab = Lab { _root: root, dir, source };
    assert_eq!(lab.next().await, "outage");
    fs::create_dir_all(&lab.dir).unwrap();
    let mut told = lab.take(9).await;
    told.retain(|line| !line.starts_with("init") && !line.starts_with("done"));
    assert_eq!(told, ["recovered"]);
    lab.nothing_else().await;
    fs::remove_dir_all(lab.dir.parent().unwrap()).unwrap();
    assert_eq!(lab.next().await, "outage");
    fs::create_dir_all(&lab.dir).unwrap();
    assert_eq!(lab.next().await, "recovered");
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_told() {
    let mut lab = Lab::started(|_| {}).await;
    let file = fs::File::create(lab.dir.join(".big")).unwrap();
    file.set_len((64 << 20) + 1).unwrap();
    fs::rename(lab.dir.join(".big"), lab.dir.join("big.yaml")).unwrap();
    assert_eq!(lab.next().await, "rejected big.yaml: it cannot be read: it is larger than 64 MiB: split it");
    // Touched, but just as large: told once.
    fs::set_permissions(lab.dir.join("big.yaml"), fs::Permissions::from_mode(0o600)).unwrap();
    lab.nothing_else().await;
    symlink("loop.yaml", lab.dir.join("loop.yaml")).unwrap();
    assert!(lab.next().await.starts_with("rejected loop.yaml: it cannot be read: "));
    lab.nothing_else().await;
}

#[tokio::test]
async fn a_file_still_being_written_is_not_read() {
    use std::io::Write;
    let mut lab = Lab::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    // Truncated and half written: as a file of its own this would be good, and would take `a` away.
    let mut file = fs::File::create(lab.dir.join("a.yaml")).unwrap();
    file.write_all(b"# half\n").unwrap();
    file.flush().unwrap();
    lab.nothing_else().await;
    file.write_all(service("a", "10.0.0.2").as_bytes()).unwrap();
    drop(file);
    assert_eq!(lab.next().await, "+a 10.0.0.2");
    let mut file = fs::File::create(lab.dir.join("new.yaml")).unwrap();
    file.write_all(b"kind: [").unwrap();
    lab.nothing_else().await;
    file.write_all(b"]").unwrap();
    drop(file);
    assert!(lab.next().await.starts_with("rejected new.yaml:"));
}
