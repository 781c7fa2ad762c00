//! A Kubernetes-compatible API server for what Services need, for machines without a cluster.
//!
//! What is here so far: where objects are stored ([`storage`]), the fields of every kind ([`schema`]), objects in JSON
//! and protobuf by these ([`codec`]), patches ([`patch`]), what a Service has to be
//! ([`service`]), answers to requests that are refused ([`status`]), and selectors ([`selector`]).

pub mod codec;
pub mod patch;
pub mod schema;
pub mod selector;
pub mod service;
pub mod status;
pub mod storage;
pub mod validation;
