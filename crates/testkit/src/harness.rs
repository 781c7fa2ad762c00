//! The `main` of test binaries whose cases come from tables.
//!
//! A [`Test`] has a name and a function; [`run`] takes the arguments of the command line as cargo's own tests do.

pub use libtest_mimic::Failed;

use libtest_mimic::{Arguments, Trial};
use std::fmt::Display;
use std::process::ExitCode;

/// One test.
pub struct Test {
    name: String,
    run: Box<dyn FnOnce() -> Result<(), Failed> + Send>,
    ignored: bool,
}

impl Test {
    /// A test that fails if `run` returns an error or panics.
    pub fn new(name: impl Into<String>, run: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Test {
        Test { name: name.into(), run: Box::new(run), ignored: false }
    }

    /// A test that fails if `run` panics.
    pub fn function(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> Test {
        Test::new(name, move || {
            run();
            Ok(())
        })
    }

    /// With `true`, listed but not run unless the command line asks for ignored tests.
    pub fn ignored(self, ignored: bool) -> Test {
        Test { ignored, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Runs the tests that the command line asks for.
pub fn run(tests: Vec<Test>) -> ExitCode {
    run_in(|| Ok::<(), String>(()), tests)
}

/// The same, after `prepare`, which enters the lab, for example, before there are threads. If tests are only listed,
/// `prepare` is not called.
pub fn run_in<T, E: Display>(prepare: impl FnOnce() -> Result<T, E>, tests: Vec<Test>) -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(e) = prepare()
    {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let trial = |Test { name, run, ignored }| Trial::test(name, run).with_ignored_flag(ignored);
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit_code()
}
