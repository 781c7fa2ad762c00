//! Leader election with a Lease.
//!
//! In: a [`Client`] and an [`Election`]. Out: [`Leadership`] changes. [`step()`] makes all decisions; this module sends
//! its requests and waits for it. At most one process leads as long as the clocks of all candidates run at about the
//! same speed; they need not show the same time.

mod step;

use crate::{Client, ObjectName, RequestError, Subresource};
use portway_api::{Lease, MicroTime};
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};
use step::{Input, Now, Output, State, step};
use tokio::time::timeout;

/// How long a request that is under way when the election is stopped may take.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// The Lease, the identity of the candidate, and the times of the election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this candidate; unique among all candidates.
    pub identity: String,
    /// How long other candidates wait after the last renewal that they observed.
    pub lease_duration: Duration,
    /// How long the leader retries a renewal before it gives up leadership; less than `lease_duration`.
    pub renew_deadline: Duration,
    /// Time between attempts; less than `renew_deadline`.
    pub retry_period: Duration,
}

impl Election {
    /// An election with client-go's default times: 15 s, 10 s and 2 s.
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
    /// This process does not lead any more: it could not renew the Lease in time, another process acquired it, or the
    /// election was stopped.
    Lost,
    /// Another process leads.
    Held {
        /// Its identity.
        by: String,
    },
}

/// Takes part in an election until `stop` completes, then releases the Lease. `changed` is called with every change.
pub async fn campaign(
    client: &Client,
    election: Election,
    stop: impl Future<Output = ()>,
    mut changed: impl FnMut(Leadership),
) {
    let mut stop = pin!(stop);
    // `stop` must not be polled again after it has completed.
    let (mut stopped, mut stop_requested) = (false, false);
    let (mut state, mut next) = State::begin(election.clone(), Instant::now());
    loop {
        let input = match next {
            Output::End => return,
            _ if std::mem::take(&mut stop_requested) => Input::Stop,
            Output::Wait => {
                let wait = state.wait(rand::random(), Instant::now());
                tokio::select! {
                    () = tokio::time::sleep(wait) => Input::Tick,
                    () = &mut stop, if !stopped => {
                        stopped = true;
                        Input::Stop
                    }
                }
            }
            // A leader must not wait for a response beyond its renew deadline.
            request => {
                let limit = state.request_timeout(Instant::now());
                let mut sending = pin!(timeout(limit, send(client, &election, request)));
                let sent = tokio::select! {
                    sent = &mut sending => sent,
                    // The version that a write returns is needed to release the Lease.
                    () = &mut stop, if !stopped => {
                        (stopped, stop_requested) = (true, true);
                        timeout(STOP_PATIENCE, sending).await.unwrap_or_else(Err)
                    }
                };
                sent.unwrap_or(Input::Failed)
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
        tracing::debug!(%error, lease = election.name, "leader election request failed");
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
            client.replace::<Lease>(&lease, Subresource::None).await.map_or_else(failed, Input::Written)
        }
        Output::Wait | Output::End => Input::Tick,
    }
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), wall: MicroTime::since_epoch(since) }
}
