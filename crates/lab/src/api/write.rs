//! Requests for single objects: get, create, replace and delete, with versions and preconditions as a real server
//! checks them, and the faults that tests ask for.

use super::http::{Connection, Request};
use super::object::{AnyObject, key};
use super::store::Refusal;
use super::{Shared, lock, wire};
use portway_model::api::{Endpoints, Lease, Resource, ResourceType, complete};
use std::io;
use std::sync::Arc;

/// A fault of the writes that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// The write is refused with this status: 409, 429, 500, 503…
    Refused(u16),
    /// The write is done, and the connection closed instead of an answer.
    AnswerLost,
}

/// The resource, namespace and name of a request for a single object; the name is empty for a creation.
pub(super) fn single(path: &str) -> Option<(ResourceType, String, String)> {
    let (before, rest) = path.split_once("/namespaces/")?;
    let mut parts = rest.splitn(3, '/');
    let (namespace, plural) = (parts.next()?, parts.next()?);
    let resource = wire::resource_of(&format!("{before}/{plural}"))?;
    Some((resource, namespace.to_owned(), parts.next().unwrap_or_default().to_owned()))
}

/// The object in the body of a request.
fn decode(resource: ResourceType, body: &[u8]) -> Option<Arc<dyn AnyObject>> {
    fn of<R: Resource + std::fmt::Debug>(body: &[u8]) -> Option<Arc<dyn AnyObject>> {
        R::from_json(body).ok().map(|object| Arc::new(object) as Arc<dyn AnyObject>)
    }
    match resource {
        r if r == complete::EndpointSlice::TYPE => of::<complete::EndpointSlice>(body),
        r if r == Endpoints::TYPE => of::<Endpoints>(body),
        r if r == Lease::TYPE => of::<Lease>(body),
        _ => None,
    }
}

impl Shared {
    /// Answers a request for a single object.
    pub(super) fn answer_single(
        &self,
        connection: &mut Connection,
        request: &Request,
        (resource, namespace, name): (ResourceType, String, String),
    ) -> io::Result<()> {
        let is_write = request.method != "GET";
        if is_write {
            lock(&self.writes).push(format!("{} {} {namespace}/{name}", request.method, resource.plural()));
        }
        // The Leases of an election do not count.
        let fault = (is_write && resource != Lease::TYPE).then(|| self.next_fault()).flatten();
        if let Some(WriteFault::Refused(code)) = fault {
            let reason = if code == 409 { "Conflict" } else { "InternalError" };
            return self.refuse(connection, code, reason, "this test refuses the write");
        }
        let id = (resource, format!("{namespace}/{name}"));
        let result = match request.method.as_str() {
            "GET" => self.store.get(&id).ok_or(Refusal::NotFound),
            "POST" => match decode(resource, &request.body) {
                Some(object) => self.store.create(object),
                None => Err(Refusal::Malformed),
            },
            "PUT" => match decode(resource, &request.body).filter(|object| key(&**object) == id.1) {
                Some(object) => self.store.replace(object),
                None => Err(Refusal::Malformed),
            },
            "DELETE" => {
                let options: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
                let condition = |name: &str| options["preconditions"][name].as_str();
                self.store.delete_if(&id, condition("uid"), condition("resourceVersion"))
            }
            _ => Err(Refusal::Malformed),
        };
        if fault == Some(WriteFault::AnswerLost) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match result {
            Ok(object) => {
                let code = if request.method == "POST" { 201 } else { 200 };
                connection.reply(code, "application/json", object.json().to_string().as_bytes())
            }
            Err(refusal) => {
                let (code, reason) = refusal.code();
                self.refuse(connection, code, reason, &format!("{} {}", request.method, id.1))
            }
        }
    }

    fn next_fault(&self) -> Option<WriteFault> {
        let mut faults = lock(&self.faults);
        let (fault, left) = (*faults)?;
        *faults = (left > 1).then_some((fault, left - 1));
        Some(fault)
    }
}
