//! Answers that kube-apiserver gave, which ours have to equal. The files beside this one are data: requests and answers.

mod answers;
mod codec;
mod patches;
mod selectors;
mod services;
mod statuses;
