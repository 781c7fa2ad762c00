//! A directory of manifests: changes by editors, by other programs and by the kubelet.

use portway_api::{EndpointSlice, Event, Node, Resource, Service, ServiceCidr};
use portway_client::{Notice, Source};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A Service in the namespace `default`; its versions differ in the cluster IP.
fn service(name: &str, ip: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: {ip}\n  ports:\n  - port: 80\n"
    )
}

type Set = (Service, EndpointSlice, Node, ServiceCidr);

/// An event as text: `+name`, `-name`, `init`, `done`.
#[derive(Debug)]
struct Summary(String);

macro_rules! summary {
    ($($resource:ident $detail:expr;)*) => {$(
        impl From<Event<$resource>> for Summary {
            fn from(event: Event<$resource>) -> Summary {
                Summary(match event {
                    Event::Init => format!("init {}", $resource::TYPE),
                    Event::InitDone => format!("done {}", $resource::TYPE),
                    Event::Apply(object) => $detail(&object, &object.metadata().unwrap().name),
                    Event::Delete { name, .. } => format!("-{name}"),
                })
            }
        }
    )*};
}

summary! {
    Service |o: &Service, name: &str| format!("+{name} {}", o.spec.clone().unwrap_or_default().cluster_ip);
    EndpointSlice |_: &EndpointSlice, name: &str| format!("+EndpointSlice {name}");
    Node |_: &Node, name: &str| format!("+Node {name}");
    ServiceCidr |_: &ServiceCidr, name: &str| format!("+ServiceCIDR {name}");
}

struct TestDirectory {
    _root: tempfile::TempDir,
    dir: PathBuf,
    source: Source<Summary>,
}

impl TestDirectory {
    /// A directory that `prepare` fills before its source is started.
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("manifests");
        fs::create_dir(&dir).unwrap();
        prepare(&dir);
        let source = Source::manifests::<Set>(&dir).unwrap();
        TestDirectory { _root: root, dir, source }
    }

    /// The same, after the first list has been received.
    async fn started(prepare: impl FnOnce(&Path)) -> Self {
        let mut directory = TestDirectory::new(prepare);
        while directory.next().await != "done ServiceCIDR" {}
        directory
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
    }

    /// Replaces a file as editors do: writes a temporary file and renames it.
    fn replace(&self, name: &str, text: &str) {
        let temporary = self.dir.join(format!(".{name}.tmp"));
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.dir.join(name)).unwrap();
    }

    async fn next(&mut self) -> String {
        let notice = timeout(TIMEOUT, self.source.next())
            .await
            .expect("no notice received")
            .expect("the source ended");
        self.print(notice)
    }

    async fn take(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.next().await);
        }
        all
    }

    /// Fails if there is another notice: makes an unrelated change and expects it to be the next notice.
    async fn expect_no_other_notice(&mut self) {
        self.replace("zz-sentinel.yaml", &service("sentinel", "10.9.9.9"));
        assert_eq!(self.next().await, "+sentinel 10.9.9.9");
        fs::remove_file(self.dir.join("zz-sentinel.yaml")).unwrap();
        assert_eq!(self.next().await, "-sentinel");
    }

    fn print(&self, notice: Notice<Summary>) -> String {
        match notice {
            Notice::Event(summary) => summary.0,
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
async fn all_objects_are_sent_at_start() {
    let mut directory = TestDirectory::new(|dir| {
        fs::write(dir.join("b.yaml"), service("b", "10.0.0.2") + &service("c", "10.0.0.3")).unwrap();
        fs::write(dir.join("a.json"), r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#)
            .unwrap();
        fs::write(dir.join("broken.yml"), "kind: [\n").unwrap();
        fs::write(dir.join("readme.txt"), "not a manifest").unwrap();
        fs::write(dir.join("deployment.yaml"), "apiVersion: apps/v1\nkind: Deployment\n").unwrap();
        fs::create_dir(dir.join("folder.yaml")).unwrap();
    });
    assert_eq!(
        directory.take(4).await,
        ["init Service", "init EndpointSlice", "init Node", "init ServiceCIDR"]
    );
    assert_eq!(directory.take(3).await, ["+Node n", "+b 10.0.0.2", "+c 10.0.0.3"]);
    let rejected = directory.next().await;
    assert!(rejected.starts_with("rejected broken.yml:"), "{rejected}");
    assert_eq!(
        directory.take(4).await,
        ["done Service", "done EndpointSlice", "done Node", "done ServiceCIDR"]
    );
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn a_file_is_created_changed_and_removed() {
    let mut directory = TestDirectory::started(|_| {}).await;
    directory.write("a.yaml", &(service("a", "10.0.0.1") + &service("b", "10.0.0.2")));
    assert_eq!(directory.take(2).await, ["+a 10.0.0.1", "+b 10.0.0.2"]);
    directory
        .write("a.yaml", &(service("a", "10.0.0.1") + &service("b", "10.0.0.3") + &service("c", "10.0.0.4")));
    assert_eq!(directory.take(2).await, ["+b 10.0.0.3", "+c 10.0.0.4"], "only changed objects");
    directory.write("a.yaml", &service("c", "10.0.0.4"));
    assert_eq!(directory.take(2).await, ["-a", "-b"]);
    fs::remove_file(directory.dir.join("a.yaml")).unwrap();
    assert_eq!(directory.next().await, "-c");
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn a_rename_over_a_file_is_a_change() {
    let mut directory =
        TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    directory.replace("a.yaml", &service("a", "10.0.0.2"));
    assert_eq!(directory.next().await, "+a 10.0.0.2");
    directory.replace("a.yaml", &service("a", "10.0.0.2"));
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn renaming_a_file_sends_no_events() {
    let mut directory =
        TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    fs::rename(directory.dir.join("a.yaml"), directory.dir.join("b.yaml")).unwrap();
    directory.expect_no_other_notice().await;
    fs::rename(directory.dir.join("b.yaml"), directory.dir.join("b.disabled")).unwrap();
    assert_eq!(directory.next().await, "-a");
}

#[tokio::test]
async fn an_invalid_object_is_rejected_alone_and_keeps_its_last_version() {
    let good = service("a", "10.0.0.1") + &service("b", "10.0.0.2") + &service("c", "10.0.0.3");
    let mut directory = TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), &good).unwrap()).await;
    // a changes, b is invalid, c is removed.
    let bad = service("b", "10.0.0.2").replace("port: 80", "port: \"80\"");
    directory.write("a.yaml", &(service("a", "10.0.0.9") + &bad));
    assert_eq!(
        directory.take(3).await,
        [
            "rejected a.yaml:16: Service default/b: spec.ports[0].port: invalid type: string \"80\", expected i32",
            "-c",
            "+a 10.0.0.9",
        ]
    );
    // Other changes of the file do not report it again, also if it is in another line.
    directory.write("a.yaml", &(service("a", "10.0.0.9") + &service("d", "10.0.0.4") + &bad));
    assert_eq!(directory.next().await, "+d 10.0.0.4");
    directory.expect_no_other_notice().await;
    directory.write("a.yaml", &(service("a", "10.0.0.9") + &service("b", "10.0.0.5")));
    assert_eq!(directory.take(2).await, ["-d", "+b 10.0.0.5"]);
    directory.write("a.yaml", &bad);
    assert_eq!(directory.take(2).await.len(), 2);
    fs::remove_file(directory.dir.join("a.yaml")).unwrap();
    assert_eq!(directory.next().await, "-b");
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn no_object_of_a_file_is_deleted_while_the_name_of_an_invalid_one_is_not_known() {
    let good = service("a", "10.0.0.1") + &service("b", "10.0.0.2");
    let mut directory = TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), &good).unwrap()).await;
    directory.write("a.yaml", &(service("a", "10.0.0.9") + "---\nkind: [\n"));
    let rejected = directory.next().await;
    assert!(rejected.starts_with("rejected a.yaml:"), "{rejected}");
    assert_eq!(directory.next().await, "+a 10.0.0.9");
    // Written again with the same content: the error is reported once.
    let text = fs::read(directory.dir.join("a.yaml")).unwrap();
    fs::write(directory.dir.join("a.yaml"), text).unwrap();
    directory.expect_no_other_notice().await;
    directory.write("a.yaml", &service("a", "10.0.0.9"));
    assert_eq!(directory.next().await, "-b");
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn an_object_with_a_misspelled_kind_keeps_its_last_version() {
    let good = service("a", "10.0.0.1") + &service("b", "10.0.0.2");
    let mut directory = TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), &good).unwrap()).await;
    directory.write("a.yaml", &service("b", "10.0.0.2").replace("kind: Service", "kind: Servcie"));
    assert_eq!(
        directory.take(2).await,
        ["rejected a.yaml:2: Service default/b: kind: \"Servcie\" is not known; did you mean Service?", "-a"]
    );
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn the_first_of_two_files_takes_precedence_and_the_second_replaces_it() {
    let mut directory = TestDirectory::new(|dir| {
        fs::write(dir.join("a.yaml"), service("x", "10.0.0.1")).unwrap();
        fs::write(dir.join("b.yaml"), service("x", "10.0.0.2")).unwrap();
    });
    let dir = directory.dir.display().to_string();
    directory.take(4).await;
    assert_eq!(directory.next().await, "+x 10.0.0.1");
    let rejected = directory.next().await;
    assert_eq!(
        rejected,
        "rejected b.yaml: Service default/x: it is ignored, because a.yaml also has it and takes precedence",
        "in {dir}"
    );
    directory.take(4).await;
    directory.write("b.yaml", &service("x", "10.0.0.3"));
    directory.expect_no_other_notice().await;
    fs::remove_file(directory.dir.join("a.yaml")).unwrap();
    assert_eq!(directory.next().await, "+x 10.0.0.3");
    directory.write("0.yaml", &service("x", "10.0.0.4"));
    assert!(directory.next().await.contains("0.yaml also has it"));
    assert_eq!(directory.next().await, "+x 10.0.0.4");
}

#[tokio::test]
async fn an_invalid_object_replaces_none_of_another_file_until_it_is_fixed() {
    let mut directory = TestDirectory::started(|dir| {
        fs::write(dir.join("a.yaml"), service("x", "10.0.0.1")).unwrap();
        fs::write(dir.join("b.yaml"), service("x", "10.0.0.2")).unwrap();
    })
    .await;
    directory.write("b.yaml", &service("x", "10.0.0.3").replace("port: 80", "port: many"));
    assert!(directory.next().await.starts_with("rejected b.yaml:8: Service default/x: spec.ports[0].port: "));
    fs::remove_file(directory.dir.join("a.yaml")).unwrap();
    assert_eq!(directory.next().await, "-x");
    directory.write("b.yaml", &service("x", "10.0.0.2"));
    assert_eq!(directory.next().await, "+x 10.0.0.2");
    directory.expect_no_other_notice().await;
}

/// As the kubelet mounts a ConfigMap: `a.yaml → ..data/a.yaml`, `..data → ..1`, where a rename replaces `..data`.
#[tokio::test]
async fn an_update_of_a_config_map_is_one_batch() {
    let version = |dir: &Path, number: u32, files: &[(&str, String)]| {
        let folder = format!("..{number}");
        fs::create_dir(dir.join(&folder)).unwrap();
        for (name, text) in files {
            fs::write(dir.join(&folder).join(name), text).unwrap();
        }
        symlink(&folder, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    };
    let mut directory = TestDirectory::new(|dir| {
        version(dir, 1, &[("a.yaml", service("a", "10.0.0.1")), ("b.yaml", service("b", "10.0.0.2"))]);
        symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
        symlink("..data/b.yaml", dir.join("b.yaml")).unwrap();
    });
    directory.take(4).await;
    assert_eq!(directory.take(2).await, ["+a 10.0.0.1", "+b 10.0.0.2"]);
    directory.take(4).await;
    // Service a changes, b moves to a.yaml, and c is new.
    let a = service("a", "10.0.0.9") + &service("b", "10.0.0.2");
    version(&directory.dir, 2, &[("a.yaml", a), ("c.yaml", service("c", "10.0.0.3"))]);
    fs::remove_dir_all(directory.dir.join("..1")).unwrap();
    symlink("..data/c.yaml", directory.dir.join("c.yaml")).unwrap();
    fs::remove_file(directory.dir.join("b.yaml")).unwrap();
    assert_eq!(directory.take(2).await, ["+a 10.0.0.9", "+c 10.0.0.3"]);
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn removing_the_directory_deletes_no_objects_and_it_may_be_restored() {
    let text = service("a", "10.0.0.1");
    let mut directory = TestDirectory::started(|dir| {
        fs::write(dir.join("a.yaml"), &text).unwrap();
        fs::write(dir.join("b.yaml"), service("b", "10.0.0.2")).unwrap();
    })
    .await;
    let aside = directory.dir.with_extension("aside");
    fs::rename(&directory.dir, &aside).unwrap();
    assert_eq!(directory.next().await, "outage");
    // The directory is complete when it appears: it was prepared under another name.
    fs::remove_file(aside.join("b.yaml")).unwrap();
    fs::write(aside.join("c.yaml"), service("c", "10.0.0.3")).unwrap();
    fs::rename(&aside, &directory.dir).unwrap();
    let mut notices = directory.take(3).await;
    notices.sort();
    assert_eq!(notices, ["+c 10.0.0.3", "-b", "recovered"]);
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn a_directory_that_is_removed_and_created_again_is_watched_again() {
    let mut directory =
        TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    let parent = directory.dir.parent().unwrap().to_owned();
    for _ in 0..3 {
        fs::remove_dir_all(&directory.dir).unwrap();
        assert_eq!(directory.next().await, "outage");
        fs::create_dir(&directory.dir).unwrap();
        let mut notices = directory.take(2).await;
        notices.sort();
        assert_eq!(notices, ["-a", "recovered"], "an empty directory means no objects");
        directory.write("a.yaml", &service("a", "10.0.0.1"));
        assert_eq!(directory.next().await, "+a 10.0.0.1");
    }
    assert!(parent.exists());
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn a_directory_that_does_not_exist_at_the_start_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, kind) in [(root.path().join("x"), ErrorKind::NotFound), (file, ErrorKind::NotADirectory)] {
        assert_eq!(Source::<Summary>::manifests::<Set>(&path).unwrap_err().kind(), kind);
    }
}

#[tokio::test]
async fn the_directory_and_its_parents_may_be_removed_and_created_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("x/y/manifests");
    fs::create_dir_all(&dir).unwrap();
    let source = Source::manifests::<Set>(&dir).unwrap();
    let mut directory = TestDirectory { _root: root, dir, source };
    directory.take(8).await;
    for removed in ["x/y", "x"] {
        fs::remove_dir_all(directory._root.path().join(removed)).unwrap();
        assert_eq!(directory.next().await, "outage");
        fs::create_dir_all(&directory.dir).unwrap();
        assert_eq!(directory.next().await, "recovered");
        directory.expect_no_other_notice().await;
    }
}

/// inotify cannot watch a path that is a loop of symbolic links.
#[tokio::test]
async fn the_last_versions_of_invalid_objects_survive_a_failure_of_inotify() {
    let mut directory =
        TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    directory.write("a.yaml", "kind: [");
    assert!(directory.next().await.starts_with("rejected a.yaml:"));
    let aside = directory.dir.with_extension("aside");
    fs::rename(&directory.dir, &aside).unwrap();
    symlink(&directory.dir, &directory.dir).unwrap();
    assert_eq!(directory.next().await, "outage");
    fs::remove_file(&directory.dir).unwrap();
    fs::rename(&aside, &directory.dir).unwrap();
    assert_eq!(directory.next().await, "recovered");
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn a_file_that_could_not_be_read_is_read_again_without_another_change() {
    let mut directory = TestDirectory::started(|_| {}).await;
    let target = directory.dir.with_file_name("target");
    symlink(&target, &target).unwrap();
    symlink(target.join("a.yaml"), directory.dir.join("a.yaml")).unwrap();
    assert!(directory.next().await.starts_with("rejected a.yaml: cannot read the file: "));
    // Outside the directory, so that inotify reports no change.
    let next = directory.dir.with_file_name("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("a.yaml"), service("a", "10.0.0.1")).unwrap();
    fs::remove_file(&target).unwrap();
    fs::rename(&next, &target).unwrap();
    assert_eq!(directory.next().await, "+a 10.0.0.1");
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_reported() {
    let mut directory = TestDirectory::started(|_| {}).await;
    let file = fs::File::create(directory.dir.join(".big")).unwrap();
    file.set_len((64 << 20) + 1).unwrap();
    fs::rename(directory.dir.join(".big"), directory.dir.join("big.yaml")).unwrap();
    assert_eq!(
        directory.next().await,
        "rejected big.yaml: cannot read the file: the file is larger than 64 MiB; split it into several files"
    );
    // The mode changes, but the file is as large as before: the error is reported once.
    fs::set_permissions(directory.dir.join("big.yaml"), fs::Permissions::from_mode(0o600)).unwrap();
    directory.expect_no_other_notice().await;
    symlink("loop.yaml", directory.dir.join("loop.yaml")).unwrap();
    assert!(directory.next().await.starts_with("rejected loop.yaml: cannot read the file: "));
    directory.expect_no_other_notice().await;
}

#[tokio::test]
async fn a_file_still_being_written_is_not_read() {
    use std::io::Write;
    let mut directory =
        TestDirectory::started(|dir| fs::write(dir.join("a.yaml"), service("a", "10.0.0.1")).unwrap()).await;
    // Truncated and half written: read now, this would be a valid file without `a`, which would be deleted.
    let mut file = fs::File::create(directory.dir.join("a.yaml")).unwrap();
    file.write_all(b"# half\n").unwrap();
    file.flush().unwrap();
    directory.expect_no_other_notice().await;
    file.write_all(service("a", "10.0.0.2").as_bytes()).unwrap();
    drop(file);
    assert_eq!(directory.next().await, "+a 10.0.0.2");
    let mut file = fs::File::create(directory.dir.join("new.yaml")).unwrap();
    file.write_all(b"kind: [").unwrap();
    directory.expect_no_other_notice().await;
    file.write_all(b"]").unwrap();
    drop(file);
    assert!(directory.next().await.starts_with("rejected new.yaml:"));
}
