//! Leader election by a Lease: of several processes, one leads.
//!
//! In: a [`Client`] and an [`Election`]. Out: [`Leadership`] changes. [`step()`] is the whole of the behaviour; this module
//! sends its requests and measures its waits. At most one process leads, as long as their clocks run at about the same
//! speed: what the clocks show does not matter.

mod step;

use crate::{Client, ObjectName, Part, RequestError};
use portway_api::{Lease, MicroTime};
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};
use step::{Input, Now, Output, State, step};

/// The Lease to hold, and the name of the candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// This candidate; unique among all.
    pub identity: String,
    /// How long the others wait after the last renewal that they saw.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up; less than `lease_duration`.
    pub renew_deadline: Duration,
    /// Time between attempts; less than `renew_deadline`.
    pub retry_period: Duration,
}

impl Election {
    /// With the times that client-go has: 15 s, 10 s and 2 s.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Election {
        Election {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// A change of leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// This process leads from now on.
    Acquired,
    /// This process does not lead any more: it could not renew in time, or another one took over.
    Lost,
    /// Another process leads.
    Held {
        /// Its identity.
        by: String,
    },
}

/// Takes part in an election until `stop` is ready, and gives the Lease up then. `changed` is called with every change.
pub async fn campaign(
    client: &Client,
    election: Election,
    stop: impl Future<Output = ()>,
    mut changed: impl FnMut(Leadership),
) {
    let mut stop = pin!(stop);
    let mut stopped = false;
    let (mut state, mut next) = State::begin(election.clone());
    loop {
        let input = match next {
            Output::End => return,
            Output::Wait => {
                let wait = state.wait(rand::random());
                tokio::select! {
                    () = tokio::time::sleep(wait) => Input::Tick,
                    () = &mut stop, if !stopped => {
                        stopped = true;
                        Input::Stop
                    }
                }
            }
            // A leader must not wait for an answer beyond its deadline.
            request => {
                match tokio::time::timeout(state.patience(Instant::now()), send(client, &election, request))
                    .await
                {
                    Ok(input) => input,
                    Err(_) => Input::Failed,
                }
            }
        };
        let (stepped, changes, output) = step(state, input, now());
        state = stepped;
        changes.into_iter().for_each(&mut changed);
        next = output;
    }
}

async fn send(client: &Client, election: &Election, request: Output) -> Input {
    let failed = |error: RequestError| {
        tracing::debug!(%error, lease = election.name, "leader election");
        Input::Failed
    };
    match request {
        Output::Read => match client.get(ObjectName::new(&election.namespace, &election.name)).await {
            Ok(lease) => Input::Read(Some(lease)),
            Err(error) if error.is_not_found() => Input::Read(None),
            Err(error) => failed(error),
        },
        Output::Create(lease) => client.create::<Lease>(&lease).await.map_or_else(failed, Input::Written),
        Output::Replace(lease) => {
            client.replace::<Lease>(&lease, Part::Main).await.map_or_else(failed, Input::Written)
        }
        Output::Wait | Output::End => Input::Tick,
    }
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), wall: MicroTime::since_epoch(since) }
}
