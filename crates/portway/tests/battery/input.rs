//! Where the agents of a case get their objects from: a directory of manifests, or an API server.

use crate::pods::PodInput;
use portway_lab::Lab;
use portway_testkit::objects::Manifest;
use std::path::{Path, PathBuf};

/// The input of the agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputKind {
    /// Services and EndpointSlices, in a directory.
    Manifests,
    /// Services and Pods, at an API server. The controllers write the EndpointSlices.
    Pods,
}

/// The objects of a running case.
pub(crate) enum Input {
    Manifests(Manifests),
    Pods(Box<PodInput>),
}

impl Input {
    pub(crate) fn new(kind: InputKind, name: &str, lab: &Lab) -> Result<Input, String> {
        match kind {
            InputKind::Manifests => Ok(Input::Manifests(Manifests::new(name))),
            InputKind::Pods => PodInput::new(name, lab).map(Box::new).map(Input::Pods),
        }
    }

    /// The flag with which an agent reads the objects.
    pub(crate) fn flag(&self) -> String {
        match self {
            Input::Manifests(manifests) => format!("--manifests={}", manifests.directory.display()),
            Input::Pods(pods) => format!("--kubeconfig={}", pods.kubeconfig().display()),
        }
    }

    pub(crate) fn apply(&mut self, object: &Manifest) -> Result<(), String> {
        match self {
            Input::Manifests(manifests) => {
                manifests.apply(object);
                Ok(())
            }
            Input::Pods(pods) => pods.apply(object),
        }
    }

    pub(crate) fn delete(&mut self, kind: &str, name: &str) -> Result<(), String> {
        match self {
            Input::Manifests(manifests) => {
                manifests.delete(kind, name);
                Ok(())
            }
            Input::Pods(pods) => pods.delete(kind, name),
        }
    }

    /// The end of the controllers' log, for a case that fails.
    pub(crate) fn diagnostics(&self) -> String {
        match self {
            Input::Manifests(_) => String::new(),
            Input::Pods(pods) => pods.diagnostics(),
        }
    }
}

/// A directory of manifests; removed when dropped.
pub(crate) struct Manifests {
    directory: PathBuf,
}

impl Manifests {
    fn new(name: &str) -> Manifests {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("create the directory for manifests");
        Manifests { directory }
    }

    fn path(&self, kind: &str, name: &str) -> PathBuf {
        self.directory.join(format!("{kind}-{name}.json"))
    }

    fn apply(&self, object: &Manifest) {
        let path = self.path(object.kind(), object.name());
        let next = path.with_extension("next");
        std::fs::write(&next, object.to_string()).expect("write a manifest");
        std::fs::rename(next, path).expect("replace a manifest");
    }

    fn delete(&self, kind: &str, name: &str) {
        std::fs::remove_file(self.path(kind, name)).expect("remove a manifest");
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).ok();
    }
}
