//! Writes the reference page of all settings.

use crate::setting::{Effect, Setting};
use crate::table::Table;
use std::fmt::Write;

impl<C: 'static> Table<C> {
    /// A section with a table for each heading. Settings without an effect are listed at the end.
    pub fn markdown(&self, defaults: &C) -> String {
        let mut text = String::new();
        let mut heading = "";
        for setting in self.settings().iter().filter(|setting| setting.effect != Effect::Unused) {
            if setting.heading != heading {
                heading = setting.heading;
                _ = write!(
                    text,
                    "\n## {heading}\n\n| field | flag | default | change | meaning |\n| --- | --- | --- | --- | --- |\n"
                );
            }
            self.row(&mut text, setting, defaults);
        }
        let unused = |setting: &&Setting<C>| setting.effect == Effect::Unused && setting.in_file();
        let unused: Vec<String> =
            self.settings().iter().filter(unused).map(|setting| code(setting.path)).collect();
        if !unused.is_empty() {
            _ = write!(text, "\n## Accepted and not used\n\n{}.\n", unused.join(", "));
        }
        text
    }

    fn row(&self, text: &mut String, setting: &Setting<C>, defaults: &C) {
        let field = if setting.in_file() { setting.path } else { "" };
        let default = match setting.default_text {
            Some(description) => description.to_owned(),
            None => code(&self.default_text(setting, defaults)),
        };
        let change = if setting.effect == Effect::Live { "live" } else { "restart" };
        let help = setting.help.replace('|', "\\|");
        let flag = code(setting.flag_name().unwrap_or_default());
        _ = writeln!(text, "| {} | {flag} | {default} | {change} | {help} |", code(field));
    }
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}
