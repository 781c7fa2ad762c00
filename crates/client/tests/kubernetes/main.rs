//! Tests of the client against a fake API server.

mod api;
mod watches;
mod writes;
