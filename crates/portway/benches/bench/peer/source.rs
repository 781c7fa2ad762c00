//! The API server that the proxies watch: the harness's stand-in, or a real one with `--kubeconfig`.

use super::real::RealServer;
use crate::cluster::{service, vip};
use portway_lab::Namespace;
use portway_lab::api::ApiServer;
use portway_model::api::Object;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Where objects come from, for the whole run.
pub(super) enum Origin {
    /// A new stand-in for each turn.
    StandIn,
    /// The same server for all turns.
    Real(Box<RealServer>),
}

/// The API server of a turn.
pub(super) enum Source<'a> {
    StandIn(ApiServer),
    Real { server: &'a RealServer, kubeconfig: String },
}

impl Origin {
    /// Connects to the API server of a kubeconfig, or decides for the stand-in if there is none.
    pub(super) fn new(kubeconfig: Option<&Path>) -> Result<Origin, String> {
        match kubeconfig {
            None => Ok(Origin::StandIn),
            Some(path) => Ok(Origin::Real(Box::new(RealServer::connect(path)?))),
        }
    }

    /// What the proxies watch, for the conditions of the run.
    pub(super) fn description(&self) -> String {
        match self {
            Origin::StandIn => "the stand-in API server of the benchmark".to_owned(),
            Origin::Real(server) => format!("the API server at {}", server.address()),
        }
    }

    /// Makes the API server reachable from the node's namespace.
    pub(super) fn open(&self, node: &Namespace) -> Result<Source<'_>, String> {
        match self {
            Origin::StandIn => {
                let address = SocketAddr::from(([127, 0, 0, 1], 0));
                ApiServer::start(node, address).map(Source::StandIn).map_err(|e| e.to_string())
            }
            Origin::Real(server) => {
                let kubeconfig = server.forward_from(node)?;
                Ok(Source::Real { server, kubeconfig })
            }
        }
    }
}

impl Source<'_> {
    pub(super) fn kubeconfig(&self) -> String {
        match self {
            Source::StandIn(api) => api.kubeconfig(),
            Source::Real { kubeconfig, .. } => kubeconfig.clone(),
        }
    }

    /// The name of the lab's node.
    pub(super) fn node_name(&self) -> &'static str {
        match self {
            Source::StandIn(_) => "node1",
            Source::Real { .. } => "portway-bench-node",
        }
    }

    /// Creates or changes an object.
    pub(super) fn put(&self, object: Object) -> Result<(), String> {
        match self {
            Source::StandIn(api) => {
                api.apply(object);
                Ok(())
            }
            Source::Real { server, .. } => server.put(&object),
        }
    }

    /// Creates the n-th Service; returns its cluster IP, which a real API server allocates.
    pub(super) fn put_service(&self, name: &str, n: usize) -> Result<IpAddr, String> {
        match self {
            Source::StandIn(api) => {
                api.apply(service(name, &vip(n).to_string(), None));
                Ok(vip(n))
            }
            Source::Real { server, .. } => {
                let stored = server.put_service(&service(name, "", None))?;
                let ip = stored.spec.unwrap_or_default().cluster_ip;
                ip.parse().map_err(|_| format!("Service {name} has the cluster IP {ip:?}"))
            }
        }
    }
}
