//! `portway controller`: runs the endpoint controllers.

use anyhow::{Context, anyhow};
use portway_controllers::Options;
use portway_serve::{LogFormat, logging};

/// Runs the controllers until the process is told to end.
pub(crate) fn run(options: Options) -> anyhow::Result<()> {
    let mistakes = options.mistakes();
    if !mistakes.is_empty() {
        return Err(anyhow!("the flags have {} mistake(s):\n  {}", mistakes.len(), mistakes.join("\n  ")));
    }
    let format = if options.logging_format == "json" { LogFormat::Json } else { LogFormat::Text };
    logging::start(format, options.verbosity);
    crate::proxy::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    runtime.block_on(Box::pin(portway_controllers::run(options)))?;
    Ok(())
}
