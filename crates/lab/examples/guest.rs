//! User-mode Linux from the command line: `guest` boots a guest and, if that fails, prints the error in one line;
//! `guest PROGRAM [ARGUMENT...]` runs a program in a guest, for example to inspect the kernel that tests run on.

use portway_lab::guest;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Enters the lab as tests do, so that guests boot for them if they boot here.
    if let Err(e) = portway_lab::enter() {
        return fail(&e.to_string());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let program = arguments.first().map_or("/bin/true", String::as_str);
    // The scratch directory of tests, so that they use this guest too: from target/debug/examples to target/tmp.
    let scratch = match std::env::current_exe() {
        Ok(path) => path.ancestors().nth(3).unwrap_or(Path::new("/")).join("tmp"),
        Err(e) => return fail(&format!("cannot read the path of this program: {e}")),
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

fn fail(error: &str) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
