//! Sends the writes of a plan, one after the other, and says what the cluster has then.

use crate::key::Key;
use crate::plan::{Note, Object, Plan, Read, Version, Write};
use portway_api::complete::EndpointSlice;
use portway_api::{Endpoints, ObjectMeta, Resource, ResourceType};
use portway_client::{Client, DeleteOptions, ObjectName, Patch, Reason, RequestError, Subresource};
use serde::Deserialize;

/// An object as the API server has it after a write, or after one that failed because it had changed.
#[derive(Debug)]
pub(crate) enum Seen {
    Stored(Object),
    Deleted(ResourceType, Key),
    Read(Read, Option<Object>),
}

/// The outcome of a plan.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seen: Vec<Seen>,
    /// The operations that succeeded.
    pub(crate) done: Vec<&'static str>,
    /// The Events of the writes that succeeded.
    pub(crate) notes: Vec<Note>,
    pub(crate) failure: Option<Failure>,
    /// Nothing more can be done for the key, until it changes: its namespace is being deleted.
    pub(crate) gave_up: bool,
}

/// Why a write failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) write: String,
    pub(crate) operation: &'static str,
    pub(crate) resource: ResourceType,
    pub(crate) message: String,
    /// The object had changed: the next attempt begins with what it is now.
    pub(crate) is_conflict: bool,
}

/// Reads what a plan has to know, or sends its writes: until one fails, unless they do not depend on each other.
pub(crate) async fn execute(client: Client, plan: Plan) -> Outcome {
    let mut outcome = Outcome::default();
    for read in plan.reads {
        if let Err(failure) = look(&client, read, &mut outcome).await {
            outcome.failure = Some(failure);
            return outcome;
        }
    }
    if let Some((resource, version)) = plan.confirm
        && !is_confirmed(&client, resource, version, &mut outcome).await
    {
        return outcome;
    }
    for reasoned in plan.writes {
        match send(&client, &reasoned.write).await {
            Ok(seen) => {
                outcome.seen.push(seen);
                outcome.done.push(reasoned.write.operation());
                outcome.notes.extend(reasoned.note);
            }
            // Nothing can be created any more, and everything will be deleted.
            Err(error) if error.reason() == Some(&Reason::NamespaceTerminating) => {
                outcome.gave_up = true;
                return outcome;
            }
            Err(error) => {
                let failure = failed(&client, &reasoned.write, &error, &mut outcome.seen).await;
                outcome.failure.get_or_insert(failure);
                if !plan.independent {
                    return outcome;
                }
            }
        }
    }
    outcome
}

async fn send(client: &Client, write: &Write) -> Result<Seen, RequestError> {
    let key = write.key();
    let name = ObjectName::new(key.namespace(), key.name());
    let stored = match write {
        Write::Create(Object::Slice(slice)) => client.create(&**slice).await.map(slice_object),
        Write::Create(Object::Endpoints(endpoints)) => {
            client.create(&**endpoints).await.map(endpoints_object)
        }
        Write::Create(Object::Json(resource, value)) => {
            client.create_json(*resource, name, value).await.map(|v| Object::Json(*resource, Box::new(v)))
        }
        Write::Replace(Object::Slice(slice)) => {
            client.replace(&**slice, Subresource::None).await.map(slice_object)
        }
        Write::Replace(Object::Endpoints(endpoints)) => {
            client.replace(&**endpoints, Subresource::None).await.map(endpoints_object)
        }
        // Objects that are known in part only are changed, never replaced.
        Write::Replace(Object::Json(..)) => unreachable!("a replacement of {write}"),
        Write::Change(change) => {
            let fields = change.fields.clone();
            let patch = if change.by_item { Patch::Strategic(fields) } else { Patch::Merge(fields) };
            let changed = client.patch_json(change.resource, name, change.subresource, &patch).await;
            changed.map(|value| Object::Json(change.resource, Box::new(value)))
        }
        Write::Delete { resource, version, propagation } => {
            let options = DeleteOptions {
                uid: Some(version.uid.clone()),
                resource_version: Some(version.resource_version.clone()).filter(|v| !v.is_empty()),
                propagation: *propagation,
                ..DeleteOptions::default()
            };
            return match client.delete_any(*resource, name, &options).await {
                Ok(()) => Ok(Seen::Deleted(*resource, key)),
                Err(error) if error.is_not_found() => {
                    Ok(Seen::Read(Read { resource: *resource, key, uid: None }, None))
                }
                Err(error) => Err(error),
            };
        }
    };
    stored.map(Seen::Stored)
}

fn slice_object(slice: EndpointSlice) -> Object {
    Object::Slice(Box::new(slice))
}

fn endpoints_object(endpoints: Endpoints) -> Object {
    Object::Endpoints(Box::new(endpoints))
}

/// Describes a failed write. If the object was not what the write assumed, it is read.
async fn failed(client: &Client, write: &Write, error: &RequestError, seen: &mut Vec<Seen>) -> Failure {
    // It changed, is gone, or exists already.
    let is_conflict = error.is_conflict() || error.is_not_found() || error.is_already_exists();
    if is_conflict {
        let read = Read { resource: write.resource(), key: write.key(), uid: None };
        if let Ok(found) = get(client, &read).await {
            seen.push(Seen::Read(read, found));
        }
    }
    Failure {
        write: write.to_string(),
        operation: write.operation(),
        resource: write.resource(),
        message: error.to_string(),
        is_conflict,
    }
}

/// Whether an object is still there and not being deleted. What was read is added to the outcome.
async fn is_confirmed(
    client: &Client,
    resource: ResourceType,
    version: Version,
    outcome: &mut Outcome,
) -> bool {
    let read = Read { resource, key: version.key, uid: Some(version.uid.clone()) };
    if let Err(failure) = look(client, read, outcome).await {
        outcome.failure = Some(failure);
        return false;
    }
    let found = outcome.seen.last().and_then(|seen| match seen {
        Seen::Read(_, Some(Object::Json(_, value))) => Some(&value["metadata"]),
        _ => None,
    });
    found.is_some_and(|meta| meta["uid"] == *version.uid && meta["deletionTimestamp"].is_null())
}

/// Reads an object and adds it to the outcome.
async fn look(client: &Client, read: Read, outcome: &mut Outcome) -> Result<(), Failure> {
    let found = match get(client, &read).await {
        Ok(found) if found.as_ref().is_none_or(has_identity) => Ok(found),
        // It must not be taken for an object that is gone.
        Ok(_) => Err("the answer has no metadata that can be decoded".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    match found {
        Ok(found) => {
            outcome.seen.push(Seen::Read(read, found));
            Ok(())
        }
        Err(message) => Err(Failure {
            write: format!("read {} {}", read.resource, read.key),
            operation: "update",
            resource: read.resource,
            message,
            is_conflict: false,
        }),
    }
}

/// Whether an object has metadata with a unique id.
fn has_identity(object: &Object) -> bool {
    match object {
        Object::Slice(slice) => slice.metadata.as_ref().is_some_and(|meta| !meta.uid.is_empty()),
        Object::Endpoints(endpoints) => endpoints.metadata.as_ref().is_some_and(|meta| !meta.uid.is_empty()),
        Object::Json(_, value) => {
            ObjectMeta::deserialize(&value["metadata"]).is_ok_and(|meta| !meta.uid.is_empty())
        }
    }
}

/// An object as it is now; `None` if there is none.
async fn get(client: &Client, read: &Read) -> Result<Option<Object>, RequestError> {
    let name = ObjectName::new(read.key.namespace(), read.key.name());
    let found = match read.resource {
        r if r == EndpointSlice::TYPE => client.get(name).await.map(slice_object),
        r if r == Endpoints::TYPE => client.get(name).await.map(endpoints_object),
        resource => {
            client.get_json(resource, name).await.map(|value| Object::Json(resource, Box::new(value)))
        }
    };
    match found {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::Node;
    use serde_json::json;

    #[test]
    fn an_answer_without_a_unique_id_or_with_other_metadata_is_no_object() {
        let object = |metadata| Object::Json(Node::TYPE, Box::new(json!({ "metadata": metadata })));
        assert!(has_identity(&object(json!({"name": "a", "uid": "u"}))));
        assert!(!has_identity(&object(json!({"name": "a"}))));
        assert!(!has_identity(&object(json!({"uid": "u", "creationTimestamp": "yesterday"}))));
        assert!(!has_identity(&Object::Json(Node::TYPE, Box::new(json!("a proxy's greeting")))));
    }
}
