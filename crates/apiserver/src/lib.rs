//! A Kubernetes-compatible API server for what Services need, for machines without a cluster.
//!
//! What is here so far: where objects are stored ([`storage`]), the fields of every kind ([`schema`]), objects in JSON
//! and protobuf by these ([`codec`]), patches ([`patch`]), and what a new Service has to be ([`service`]).

pub mod codec;
pub mod patch;
pub mod schema;
pub mod service;
pub mod storage;
pub mod validation;
