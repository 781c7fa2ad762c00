//! Starts the controllers: client, Events, leader election, HTTP pages and the loop; and ends them on a signal.

use crate::controller::{Controller, Logic};
use crate::deployment::DeploymentController;
use crate::endpoint_controller::EndpointController;
use crate::garbage::GarbageCollector;
use crate::kind::Kind;
use crate::metrics::Metrics;
use crate::node_lifecycle::NodeLifecycle;
use crate::options::Options;
use crate::replicaset::ReplicaSetController;
use crate::runner::Runner;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use portway_client::{Access, ConnectError, Election, Encoding, Leadership, Recorder, campaign, connect};
use portway_serve::metrics::CONTENT_TYPE;
use portway_serve::{BindError, ServerName, page, profile_router, serve_at};
use std::future::ready;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

const PAGES: ServerName = ServerName { page: "/metrics", flag: "--bind-address", field: "--bind-address" };

/// Why the controllers could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No client could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The HTTP pages cannot be served.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The watches have ended.
    #[error("the watches of the API server have ended")]
    Ended,
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] std::io::Error),
}

/// Runs the controllers until the process is told to end.
pub async fn run(options: Options) -> Result<(), RunError> {
    let client = connect(&Access {
        kubeconfig: options.kubeconfig.clone(),
        master: options.master.clone(),
        qps: options.kube_api_qps,
        burst: options.kube_api_burst,
        encoding: Encoding::Protobuf,
    })
    .await?;
    let identity = identity();
    let controllers = options.enabled().map(|kind| {
        let (recorder, events) = Recorder::new(&client, kind.reporter(), &identity);
        tokio::spawn(events);
        Controller::new(kind, options.concurrency(kind), recorder, logic(kind, &options))
    });
    let controllers: Vec<Controller> = controllers.collect();
    let metrics = Metrics::new(client.statistics(), &options.leader_elect_resource_name);
    let (stop, stopped) = watch::channel(false);
    let (changes, leadership) = mpsc::unbounded_channel();
    let names: Vec<&str> = controllers.iter().map(|controller| controller.kind.name()).collect();
    tracing::info!(
        server = client.server(),
        identity,
        controllers = names.join(","),
        "starting the controllers"
    );

    let runner = Runner::new(client.clone(), metrics.clone(), controllers, options.min_resync_period);
    let mut work = tokio::spawn(runner.run(leadership, stopped));
    // The Lease is released after the last write has ended.
    let (release, released) = watch::channel(false);
    let election = elect(&client, &options, identity, changes, released);
    let pages = serve_at(PAGES, options.bind_address, true, router(metrics, options.profiling));
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;

    let shut_down = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            // A process whose runner has ended writes nothing, so it must not go on renewing the Lease.
            ended = &mut work => return Err(ended_early(ended)),
        }
        tracing::info!("stopping: waiting for the writes that are under way");
        _ = stop.send(true);
        let ended = work.await;
        if ended.is_err() {
            return Err(ended_early(ended));
        }
        _ = release.send(true);
        Ok(())
    };
    tokio::select! {
        never = pages => match never? {},
        ended = async { tokio::try_join!(shut_down, async { election.await; Ok(()) }) } => ended.map(drop),
    }
}

/// The decisions of a controller.
fn logic(kind: Kind, options: &Options) -> Box<dyn Logic + Send> {
    match kind {
        Kind::Slices | Kind::Endpoints | Kind::Mirroring => Box::new(EndpointController::new(kind, options)),
        Kind::ReplicaSets => Box::new(ReplicaSetController::default()),
        Kind::Deployments => Box::new(DeploymentController::default()),
        Kind::NodeLifecycle => Box::new(NodeLifecycle { grace: options.node_monitor_grace_period }),
        Kind::Garbage => Box::new(GarbageCollector),
    }
}

/// The controllers ended, and were not told to.
fn ended_early(ended: Result<(), tokio::task::JoinError>) -> RunError {
    match ended {
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        _ => RunError::Ended,
    }
}

/// Takes part in the election until `released`, or leads at once without one.
async fn elect(
    client: &portway_client::Client,
    options: &Options,
    identity: String,
    changes: mpsc::UnboundedSender<Leadership>,
    mut released: watch::Receiver<bool>,
) {
    let stop = async {
        _ = released.wait_for(|released| *released).await;
    };
    if !options.leader_elect {
        _ = changes.send(Leadership::Acquired);
        return stop.await;
    }
    let election = Election {
        lease_duration: options.leader_elect_lease_duration,
        renew_deadline: options.leader_elect_renew_deadline,
        retry_period: options.leader_elect_retry_period,
        ..Election::new(
            &options.leader_elect_resource_namespace,
            &options.leader_elect_resource_name,
            &identity,
        )
    };
    campaign(client, election, stop, |change| _ = changes.send(change)).await;
}

fn router(metrics: Metrics, profiling: bool) -> Router {
    const TEXT: &str = "text/plain; charset=utf-8";
    let alive = metrics.clone();
    let health = move || {
        let alive = alive.is_alive();
        let (status, text) = match alive {
            true => (StatusCode::OK, "ok"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "the loop of the controllers does not run"),
        };
        ready((status, page(TEXT, text.to_owned())))
    };
    Router::new()
        .route("/metrics", any(move || ready(page(CONTENT_TYPE, metrics.encode()))))
        .route("/healthz", any(health.clone()))
        .route("/livez", any(health))
        .merge(profile_router(move || profiling, "--profiling"))
}

/// A name for this process that no other candidate has: that of the host, and a random part.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{}_{}", host.trim(), random.trim())
}
