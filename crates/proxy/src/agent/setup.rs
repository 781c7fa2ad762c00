//! Starts what the agent needs: the source of objects, the health and metrics servers, the sysctls of the host.

use super::backends::Backends;
use super::{AgentError, Options, settings};
use crate::config::Config;
use crate::health::MetricsPages;
use crate::metrics::Metrics;
use crate::{health, sysctl};
use portway_client::{Access, Client, Encoding, Recorder, Selection, Source};
use portway_model::ClusterEvent;
use portway_model::api::{EndpointSlice, Node, Service, ServiceCidr};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Opens the source of objects, and a recorder of Events if that is an API server.
pub(super) async fn open_source(
    options: &Options,
    node: &str,
    metrics: &Metrics,
    tasks: &mut JoinSet<()>,
) -> Result<(Source<ClusterEvent>, Recorder), AgentError> {
    if let Some(directory) = &options.manifests {
        tracing::info!(directory = %directory.display(), "reading manifests");
        let source = Source::manifests::<(Service, EndpointSlice, Node, ServiceCidr)>(directory)
            .map_err(|source| AgentError::Manifests { directory: directory.clone(), source })?;
        return Ok((source, Recorder::none()));
    }
    let client = connect(&options.config).await?;
    tracing::info!(server = client.server(), "watching the API server");
    metrics.set_requests(client.statistics());
    let (recorder, writer) = Recorder::new(&client, "kube-proxy", node);
    tasks.spawn(writer);
    let services = Selection {
        field_selector: Some("spec.clusterIP!=None".into()),
        // API servers before Kubernetes 1.31 do not know this field. They return headless Services too, which
        // `Cluster` ignores.
        fields_are_optional: true,
        ..Selection::labels("!service.kubernetes.io/service-proxy-name")
    };
    let source = Source::kubernetes(&client)
        .watch::<Service>(services)
        .watch::<EndpointSlice>(Selection::labels("!service.kubernetes.io/headless"))
        .watch::<Node>(Selection::fields(&format!("metadata.name={node}")))
        .watch::<ServiceCidr>(Selection { optional: true, ..Selection::all() });
    Ok((source.start(), recorder))
}

async fn connect(config: &Config) -> Result<Client, AgentError> {
    let client = &config.client;
    let json = client.content_type == "application/json";
    let access = Access {
        kubeconfig: client.kubeconfig.clone(),
        master: client.master.clone(),
        qps: client.qps,
        burst: client.burst.try_into().unwrap_or(i32::MAX),
        encoding: if json { Encoding::Json } else { Encoding::Protobuf },
    };
    Ok(portway_client::connect(&access).await?)
}

/// Starts the health and metrics servers on their thread. A server ends only with an error.
pub(super) fn serve(
    config: &Config,
    pages: MetricsPages,
    thread: &Handle,
) -> JoinSet<Result<std::convert::Infallible, health::BindError>> {
    let mut servers = JoinSet::new();
    let hard = config.bind_hard_fail;
    if let Some(address) = config.healthz {
        servers.spawn_on(
            health::serve_healthz(address, hard, pages.health.clone(), pages.metrics.clone()),
            thread,
        );
    }
    if let Some(address) = config.metrics {
        servers.spawn_on(health::serve_metrics(address, hard, pages), thread);
    }
    servers
}

/// The work of `--init-only`, which needs full privileges: sets sysctls, those of the mode included, and opens the
/// mode, which loads the kernel modules that it needs.
pub fn prepare(config: &Config) -> Result<(), AgentError> {
    apply_sysctls(config);
    let (mode, settings) = (config.mode(), settings::initial(config));
    drop(Backends::open(config, &settings)?);
    for warning in mode.prepare(&mode.settings(settings))? {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Sets the sysctls of conntrack and `oom_score_adj`. Failures are logged, and do not stop the agent.
pub fn apply_sysctls(config: &Config) {
    let kernel = sysctl::Kernel::host();
    let report = kernel.apply(&sysctl::plan(&kernel.read(), &config.conntrack, kernel.cores()));
    for write in report.written {
        tracing::debug!(?write, "sysctl written");
    }
    for refused in report.refused {
        tracing::info!("{refused}");
    }
    if let Err(error) = kernel.set_oom_score_adj(config.oom_score_adj) {
        tracing::info!(%error, value = config.oom_score_adj, "oom_score_adj could not be set");
    }
}
