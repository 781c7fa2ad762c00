//! A mode as the registry lists it: how the host is checked for it, how it is opened, and how its leftovers are cleared.

use crate::{Backend, Error, IpvsSettings, Settings, UserspaceSettings};
use portway_model::Family;
use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A proxy mode. The agent knows modes by this trait and by [`Backend`] only.
pub trait Mode: Sync {
    /// The name, as `mode:` and `--proxy-mode` have it.
    fn name(&self) -> &'static str;

    /// The section of the configuration that has its sync periods.
    fn section(&self) -> Section {
        Section::Nftables
    }

    /// The features that not every mode has.
    fn features(&self) -> Features {
        Features::default()
    }

    /// The settings without those of other modes, so that a change of these costs nothing.
    fn settings(&self, all: Settings) -> Settings {
        Settings { ipvs: IpvsSettings::default(), userspace: UserspaceSettings::default(), ..all }
    }

    /// How long the agent may take to stop in this mode.
    fn stop_timeout(&self, _settings: &Settings) -> Option<Duration> {
        None
    }

    /// Whether the host has everything that the mode needs. Changes nothing.
    fn check(&self) -> Result<(), Error>;

    /// Opens the mode in the families given, and finds out whether this process may use it.
    fn open(&self, options: &OpenOptions<'_>) -> Result<Box<dyn Backend>, Error>;

    /// All places in which this mode, or kube-proxy's mode of the same kind, leaves objects behind; in the order in which
    /// they can be cleared.
    fn locations(&self) -> Vec<Location>;

    /// The objects in one of these places, in words; removed afterwards unless `how` is [`Clear::Look`].
    fn clear(&self, location: &Location, how: Clear, settings: &Settings) -> Result<Vec<String>, Error>;
}

/// A section of kube-proxy's configuration file, or the one that Portway adds, with the settings of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are their names")]
pub enum Section {
    Nftables,
    Iptables,
    Ipvs,
    Userspace,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Section::Nftables => "nftables",
            Section::Iptables => "iptables",
            Section::Ipvs => "ipvs",
            Section::Userspace => "userspace",
        })
    }
}

/// Features that not every mode has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Node ports answer at 127.0.0.1 if the configuration asks for it.
    pub localhost_node_ports: bool,
    /// Connections to pods can begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Its rules can redirect connections to a listener on this node, for the mode that relays them.
    pub redirects: bool,
    /// It needs the node's own addresses in its settings.
    pub node_addresses: bool,
}

/// What a mode is handed when it is opened.
pub struct OpenOptions<'a> {
    /// The families to program.
    pub families: &'a [Family],
    /// The settings, as far as they are known before the first sync.
    pub settings: &'a Settings,
    /// All modes, for a mode that uses the rules of another one.
    pub modes: &'a [&'static dyn Mode],
    /// Starts this program again with a subcommand, for a mode that needs a process of its own.
    pub relaunch: Arc<dyn Fn(&str) -> Command + Send + Sync>,
}

impl fmt::Debug for OpenOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions").field("families", &self.families).finish_non_exhaustive()
    }
}

/// How to treat leftovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// List them, and change nothing.
    Look,
    /// Remove them once no connection uses them.
    WhenIdle,
    /// Remove them.
    Now,
}

/// A place in the host that a mode keeps objects in: a table, the rules of one variant of a tool, a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The place, in words.
    pub label: String,
    /// Tells places with the same label apart.
    pub id: String,
    /// The family, if objects of one family are kept there.
    pub family: Option<Family>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}
