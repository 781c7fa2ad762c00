//! The agent's memory when Services are read from a directory of manifests: one file for each Service, and one file
//! for all.

use crate::Options;
use crate::cluster::{Cluster, Setup, memory};
use crate::report::{Goal, Report};
use crate::sync::wait_for_first_sync;
use indicatif::ProgressBar;
use portway_lab::Agent;
use portway_model::api::Object;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The number of directories that are measured.
pub(crate) const STEPS: usize = 2;

/// Measures both directories.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    let size = options.services;
    for (key, files, what) in [("files", size, "one file each"), ("file", 1, "one file")] {
        bar.set_message(format!("{size} Services from manifests, {what}"));
        let cluster = Cluster::new(Setup::new(options.endpoints))?;
        let directory = Directory::write(&cluster, options, files).map_err(|e| e.to_string())?;
        let flags = [
            "proxy".to_owned(),
            format!("--manifests={}", directory.0.display()),
            "--hostname-override=node1".into(),
            "--cluster-cidr=10.244.0.0/16".into(),
            "--proxy-mode=nftables".into(),
        ];
        let agent = Agent::start(cluster.lab.node(1), Path::new(env!("CARGO_BIN_EXE_portway")), &flags)
            .map_err(|e| e.to_string())?;
        wait_for_first_sync(&cluster)?;
        let (now, peak) = memory(agent.id()).ok_or("the agent has exited")?;
        report.add(&format!("manifests_{key}_rss_mb"), format!("{size} Services, {what}: memory"), now, "MB");
        let label = format!("{size} Services, {what}: memory at its peak");
        report.add_with_goal(&format!("manifests_{key}_peak_mb"), label, peak, "MB", Goal::AtMost(64.0));
        bar.inc(1);
    }
    Ok(())
}

/// A directory of manifests, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn write(cluster: &Cluster, options: &Options, files: usize) -> std::io::Result<Directory> {
        let name = format!("bench-{}-manifests-{files}", std::process::id());
        let directory = Directory(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        fs::create_dir_all(&directory.0)?;
        let mut texts = vec![String::new(); files];
        texts[0].push_str(&document(&crate::cluster::node("node1")));
        for n in 0..options.services {
            let text = &mut texts[n % files];
            text.push_str(&document(&cluster.service(n)));
            text.push_str(&document(&cluster.slice(n, 0, options.endpoints)));
        }
        for (n, text) in texts.into_iter().enumerate() {
            fs::write(directory.0.join(format!("{n:05}.yaml")), text)?;
        }
        Ok(directory)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The object as a document of a manifest, as `kubectl get -o yaml` prints it.
fn document(object: &Object) -> String {
    let (version, kind) = match object {
        Object::Service(_) => ("v1", "Service"),
        Object::EndpointSlice(_) => ("discovery.k8s.io/v1", "EndpointSlice"),
        Object::Node(_) => ("v1", "Node"),
        Object::ServiceCidr(_) => ("networking.k8s.io/v1", "ServiceCIDR"),
    };
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".into(), version.into());
        fields.insert("kind".into(), kind.into());
    }
    format!("---\n{}", serde_saphyr::to_string(&value).unwrap_or_default())
}
