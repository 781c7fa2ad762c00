//! User-mode Linux from the command line: `guest` boots one and says whether that works, in one line; `guest PROGRAM
//! [ARGUMENT...]` runs a program in one, for a look at what a test sees there.

use portway_lab::guest;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // As tests do, so that what works here works there.
    if let Err(e) = portway_lab::enter() {
        return fail(&e.to_string());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let program = arguments.first().map_or("/bin/true", String::as_str);
    // The directory that tests have, so that they go on with this guest: from target/debug/examples to target/tmp.
    let scratch = match std::env::current_exe() {
        Ok(path) => path.ancestors().nth(3).unwrap_or(Path::new("/")).join("tmp"),
        Err(e) => return fail(&format!("the path of this program: {e}")),
    };
    if let Err(e) = std::fs::create_dir_all(&scratch) {
        return fail(&format!("{}: {e}", scratch.display()));
    }
    match guest::run(Path::new(program), arguments.get(1..).unwrap_or_default(), &scratch) {
        Ok(output) => {
            print!("{}", output.text);
            ExitCode::from(output.status.and_then(|s| u8::try_from(s).ok()).unwrap_or(1))
        }
        Err(e) => fail(&e.to_string()),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}
