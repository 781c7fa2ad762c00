//! Implements [`Mode`] with the iptables engine and the renderer of this crate.

use crate::render;
use portway_dataplane::{
    Backend, Clear, Driver, Error, Families, Features, Location, Mode, OpenOptions, Section, Settings,
};
use portway_model::Family;
use portway_xtables::commit::{Kernel, Tool};
use portway_xtables::desired::Renderer;
use portway_xtables::drift::TablesDetector;
use portway_xtables::{Engine, Tools, leftovers};
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

    fn clear(&self, location: &Location, how: Clear, _: &Settings) -> Result<Vec<String>, Error> {
        leftovers::clear(location, how)
    }
}
