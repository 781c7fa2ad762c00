//! A configuration file. One that means something means the same when it is written out and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_proxy::config::{Config, ProxyFlags, diff_live, merge, parse, print};

fuzz_target!(|text: &str| {
    let Some(config) = read(text) else { return };
    let Ok(written) = print::to_yaml(&config) else { panic!("{config:?} cannot be written") };
    let Some(again) = read(&written) else { panic!("cannot be read back:\n{written}") };
    assert_eq!(config, again, "{written}");
    assert!(diff_live(&config, &again).is_empty());
});

fn read(text: &str) -> Option<Config> {
    let flags = ProxyFlags::default();
    match parse("fuzz.yaml", text) {
        Ok(file) => merge(&flags, Some(file)).ok().map(|(config, _)| config),
        Err(errors) => {
            // Each can be said, on one line.
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|error| !error.to_string().is_empty()));
            None
        }
    }
}
