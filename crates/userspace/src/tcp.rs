//! TCP: bytes move from socket to socket through pipes, without being copied to user space.

mod connection;
mod pipes;
mod pump;
mod worker;

pub(crate) use worker::Worker;
