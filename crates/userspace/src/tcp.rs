//! TCP: bytes move from socket to socket by way of pipes, and never through this process's memory.

mod connection;
mod pipes;
mod pump;
mod worker;

pub(crate) use worker::Worker;
