//! A directory of manifests while the process has reached its limit of open files. In a file of its own, because the
//! limit is one of the whole process.

use portway_api::{Event, Resource, Service};
use portway_client::{Notice, Source};
use rustix::process::{Resource as Limit, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::time::Duration;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);

/// The name of an applied Service; empty for other events.
struct Applied(String);

impl From<Event<Service>> for Applied {
    fn from(event: Event<Service>) -> Self {
        match event {
            Event::Apply(service) => Applied(service.metadata().unwrap().name.clone()),
            _ => Applied(String::new()),
        }
    }
}

async fn wait_for(source: &mut Source<Applied>, wanted: impl Fn(&Notice<Applied>) -> bool) {
    let search = async {
        loop {
            if wanted(&source.next().await.expect("the source ended")) {
                return;
            }
        }
    };
    timeout(TIMEOUT, search).await.expect("no such notice received");
}

#[tokio::test]
async fn a_file_written_while_the_directory_cannot_be_read_is_read_afterwards() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("manifests");
    fs::create_dir(&directory).unwrap();
    let text = |name: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n");
    fs::write(directory.join("a.yaml"), text("a")).unwrap();
    // Renaming it opens no file.
    fs::write(root.path().join("b.yaml"), text("b")).unwrap();
    let mut source = Source::<Applied>::manifests::<(Service,)>(&directory).unwrap();
    wait_for(&mut source, |notice| matches!(notice, Notice::Event(Applied(name)) if name == "a")).await;
    let limit = getrlimit(Limit::Nofile);
    setrlimit(Limit::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    fs::rename(root.path().join("b.yaml"), directory.join("b.yaml")).unwrap();
    wait_for(&mut source, |notice| matches!(notice, Notice::Outage(_))).await;
    setrlimit(Limit::Nofile, limit).unwrap();
    wait_for(&mut source, |notice| matches!(notice, Notice::Event(Applied(name)) if name == "b")).await;
}
