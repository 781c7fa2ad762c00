//! The interface of a mode in the registry: checks the host, opens the mode, and clears its leftovers.

use crate::{Backend, Error, IpvsSettings, Settings, UserspaceSettings};
use portway_model::{Family, ServiceName};
use std::fmt;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A proxy mode. The agent uses modes through this trait and [`Backend`] only.
pub trait Mode: Sync {
    /// The name, as in `mode:` and `--proxy-mode`.
    fn name(&self) -> &'static str;

    /// The section of the configuration with its settings.
    fn section(&self) -> Section {
        Section::Nftables
    }

    /// The features that not every mode has.
    fn features(&self) -> Features {
        Features::default()
    }

    /// The settings without those of other modes, so that a change of the latter does not cause any work.
    fn settings(&self, all: Settings) -> Settings {
        Settings { ipvs: IpvsSettings::default(), userspace: UserspaceSettings::default(), ..all }
    }

    /// How long the agent may take to stop in this mode; `None` for the agent's default.
    fn stop_timeout(&self, _settings: &Settings) -> Option<Duration> {
        None
    }

    /// Checks that the host has everything that the mode needs. Changes nothing.
    fn check(&self) -> Result<(), Error>;

    /// Opens the mode in the given families. Fails if the host does not support it or the process lacks the privilege.
    fn open(&self, options: &OpenOptions<'_>) -> Result<Box<dyn Backend>, Error>;

    /// Sets what needs full privileges on the host and stays when the agent runs with fewer (`--init-only`), beyond what
    /// [`Mode::open`] does. Returns warnings.
    fn prepare(&self, settings: &Settings) -> Result<Vec<String>, Error> {
        _ = settings;
        Ok(Vec::new())
    }

    /// The Services that the rules in the kernel serve at cluster IPs, as an earlier run left them, if the rules name
    /// their Services.
    fn holders(&self) -> Vec<(IpAddr, ServiceName)> {
        Vec::new()
    }

    /// All locations in which this mode, or the same mode of kube-proxy, may have left objects, in the order in which
    /// they can be cleared.
    fn locations(&self) -> Vec<Location>;

    /// Descriptions of the objects in one of these locations. The objects are removed unless `how` is [`Clear::List`].
    fn clear(&self, location: &Location, how: Clear, settings: &Settings) -> Result<Vec<String>, Error>;
}

/// A section of the configuration file with the settings of a mode. All but `userspace` are kube-proxy's.
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
    /// The mode itself serves node ports at loopback addresses if that is configured.
    pub localhost_node_ports: bool,
    /// Connections to pods can begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Its rules can redirect connections to a listener on this node, for the mode that relays them.
    pub redirects: bool,
    /// It needs the node's addresses in its settings.
    pub node_addresses: bool,
}

/// The arguments of [`Mode::open`].
pub struct OpenOptions<'a> {
    /// The families to program.
    pub families: &'a [Family],
    /// The settings, as far as they are known before the first sync.
    pub settings: &'a Settings,
    /// All modes, for a mode that uses the rules of another one.
    pub modes: &'a [&'static dyn Mode],
    /// Makes the command that starts this program with a subcommand, for a mode that needs a second process.
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
    List,
    /// Remove them, except for those that connections use.
    WhenIdle,
    /// Remove them.
    Now,
}

/// A location of a mode's objects on the host: a table, the rules of one variant of a tool, a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The name for log messages.
    pub label: String,
    /// Distinguishes locations with the same label.
    pub id: String,
    /// The family, if the objects there are of one family.
    pub family: Option<Family>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}
