//! Sends the writes of a plan, one after the other, and says what the cluster has then.

use crate::key::Key;
use crate::plan::{Reasoned, Version, Write};
use portway_api::complete::EndpointSlice;
use portway_api::{Endpoints, Writable};
use portway_client::{Client, DeleteOptions, ObjectName, Reason, RequestError, Subresource};

/// An object as the API server has it after a write, or after one that failed because it had changed.
#[derive(Debug)]
pub(crate) enum Seen {
    Slice(Box<EndpointSlice>),
    SliceDeleted(Key),
    SliceMissing(Key),
    Endpoints(Box<Endpoints>),
    EndpointsMissing(Key),
}

/// The outcome of a plan's writes.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seen: Vec<Seen>,
    /// The operations that succeeded.
    pub(crate) done: Vec<&'static str>,
    pub(crate) failure: Option<Failure>,
}

/// Why a write failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) write: String,
    pub(crate) operation: &'static str,
    pub(crate) message: String,
    /// The object had changed: the next attempt begins with what it is now.
    pub(crate) is_conflict: bool,
}

/// Reads the Endpoints object of a key.
pub(crate) async fn read_endpoints(client: Client, key: Key) -> Outcome {
    let name = ObjectName::new(key.namespace(), key.name());
    let mut outcome = Outcome::default();
    match client.get::<Endpoints>(name).await {
        Ok(endpoints) => outcome.seen.push(Seen::Endpoints(Box::new(endpoints))),
        Err(error) if error.is_not_found() => outcome.seen.push(Seen::EndpointsMissing(key)),
        Err(error) => {
            let (write, message) = (format!("read Endpoints {key}"), error.to_string());
            outcome.failure = Some(Failure { write, operation: "update", message, is_conflict: false });
        }
    }
    outcome
}

/// Sends writes until one fails.
pub(crate) async fn execute(client: Client, writes: Vec<Reasoned>) -> Outcome {
    let mut outcome = Outcome::default();
    for Reasoned { write, .. } in writes {
        let result = match &write {
            Write::CreateSlice(slice) => client.create(&**slice).await.map(|s| Seen::Slice(Box::new(s))),
            Write::ReplaceSlice(slice) => {
                client.replace(&**slice, Subresource::None).await.map(|s| Seen::Slice(Box::new(s)))
            }
            Write::DeleteSlice(version) => {
                delete::<EndpointSlice>(&client, version).await.map(|()| Seen::SliceDeleted(write.key()))
            }
            Write::CreateEndpoints(endpoints) => {
                client.create(&**endpoints).await.map(|e| Seen::Endpoints(Box::new(e)))
            }
            Write::ReplaceEndpoints(endpoints) => {
                client.replace(&**endpoints, Subresource::None).await.map(|e| Seen::Endpoints(Box::new(e)))
            }
            Write::DeleteEndpoints(version) => {
                delete::<Endpoints>(&client, version).await.map(|()| Seen::EndpointsMissing(write.key()))
            }
        };
        match result {
            Ok(seen) => {
                outcome.seen.push(seen);
                outcome.done.push(write.operation());
            }
            // Nothing can be created any more, and everything will be deleted.
            Err(error) if is_terminating(&error) => return outcome,
            Err(error) => {
                let is_conflict = changed(&error);
                if is_conflict {
                    outcome.seen.extend(read_again(&client, &write).await);
                }
                outcome.failure = Some(Failure {
                    write: write.to_string(),
                    operation: write.operation(),
                    message: error.to_string(),
                    is_conflict,
                });
                return outcome;
            }
        }
    }
    outcome
}

async fn delete<R: Writable>(client: &Client, version: &Version) -> Result<(), RequestError> {
    let options = DeleteOptions {
        uid: Some(version.uid.clone()),
        resource_version: Some(version.resource_version.clone()),
        ..DeleteOptions::default()
    };
    let name = ObjectName::new(version.key.namespace(), version.key.name());
    match client.delete::<R>(name, &options).await {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// Whether the object is not what the write assumed: it changed, is gone, or exists already.
fn changed(error: &RequestError) -> bool {
    error.is_conflict() || error.is_not_found() || error.is_already_exists()
}

fn is_terminating(error: &RequestError) -> bool {
    error.reason() == Some(&Reason::Forbidden) && error.to_string().contains("because it is being terminated")
}

/// The object of a write as it is now.
async fn read_again(client: &Client, write: &Write) -> Option<Seen> {
    let key = write.key();
    let name = ObjectName::new(key.namespace(), key.name());
    match write {
        Write::CreateSlice(_) | Write::ReplaceSlice(_) | Write::DeleteSlice(_) => {
            match client.get::<EndpointSlice>(name).await {
                Ok(slice) => Some(Seen::Slice(Box::new(slice))),
                Err(error) => error.is_not_found().then_some(Seen::SliceMissing(key)),
            }
        }
        Write::CreateEndpoints(_) | Write::ReplaceEndpoints(_) | Write::DeleteEndpoints(_) => {
            match client.get::<Endpoints>(name).await {
                Ok(endpoints) => Some(Seen::Endpoints(Box::new(endpoints))),
                Err(error) => error.is_not_found().then_some(Seen::EndpointsMissing(key)),
            }
        }
    }
}
