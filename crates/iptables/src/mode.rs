//! Implements [`Mode`] with the iptables engine and the renderer of this crate.

use crate::render;
use portway_dataplane::{
    Backend, Clear, Driver, Error, Families, Features, Location, Mode, OpenOptions, Section, Settings,
};
use portway_model::{Family, ServiceName};
use portway_xtables::commit::{Kernel, Tool};
use portway_xtables::desired::Renderer;
use portway_xtables::drift::TablesDetector;
use portway_xtables::{Engine, Tools, leftovers};
use std::net::IpAddr;
use std::time::Instant;

/// Renders the rules of this mode.
pub const RENDERER: Renderer = Renderer { base: render::base, service: render::service };

/// The mode for one family.
pub type Iptables<K = Tool> = Driver<Engine<K>>;

/// The mode for one family, on a kernel that the caller passes: the `iptables` commands, or the fake of tests.
pub fn with_kernel<K: Kernel>(kernel: K, family: Family) -> Iptables<K> {
    Driver::new(Engine::with_kernel(kernel, family, RENDERER))
}

/// The iptables mode.
pub const MODE: &dyn Mode = &IptablesMode;

struct IptablesMode;

impl Mode for IptablesMode {
    fn name(&self) -> &'static str {
        "iptables"
    }

    fn section(&self) -> Section {
        Section::Iptables
    }

    fn features(&self) -> Features {
        Features { redirects: true, ..Features::default() }
    }

    fn check(&self) -> Result<(), Error> {
        let (tools, _) = Tools::detect().map_err(|e| e.in_family(Family::V4))?;
        Engine::open(&tools, Family::V4, RENDERER).map(drop)
    }

    fn open(&self, options: &OpenOptions<'_>) -> Result<Box<dyn Backend>, Error> {
        let tools = Tools::detect_and_log()?;
        let drift = TablesDetector::new(tools.variant, Instant::now());
        let open = |family| Engine::open(&tools, family, RENDERER);
        Ok(Box::new(Families::open(options.families, open, drift)?))
    }

    fn locations(&self) -> Vec<Location> {
        leftovers::locations()
    }

    fn holders(&self) -> Vec<(IpAddr, ServiceName)> {
        let Ok((tools, _)) = Tools::detect() else { return Vec::new() };
        let mut holders = Vec::new();
        for family in Family::ALL {
            if let Ok(mut tool) = Tool::open(&tools, family) {
                // A listing that fails is that of a host without rules, or is reported by the first sync.
                _ = tool.save(&mut |line| holders.extend(holder(line)));
            }
        }
        holders
    }

    fn clear(&self, location: &Location, how: Clear, _: &Settings) -> Result<Vec<String>, Error> {
        leftovers::clear(location, how)
    }
}

/// The cluster IP of a rule of `KUBE-SERVICES`, and the Service in its comment.
fn holder(line: &str) -> Option<(IpAddr, ServiceName)> {
    let (address, rest) = line.strip_prefix("-A KUBE-SERVICES -d ")?.split_once('/')?;
    let (comment, _) = rest.split_once("--comment \"")?.1.split_once(" cluster IP\"")?;
    let (namespace, name) = comment.split_once('/')?;
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    Some((address.parse().ok()?, ServiceName::new(namespace, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_cluster_ip_is_in_the_comment_of_its_rule() {
        let rule = |comment: &str| {
            format!(
                "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"{comment}\" -m tcp --dport 80 -j X"
            )
        };
        let held = Some(("10.96.0.1".parse().unwrap(), ServiceName::new("default", "web")));
        assert_eq!(holder(&rule("default/web cluster IP")), held);
        assert_eq!(holder(&rule("default/web:http cluster IP")), held);
        assert_eq!(holder(&rule("default/web external IP")), None);
        assert_eq!(holder("-A KUBE-NODEPORTS -p tcp -j X"), None);
    }
}
