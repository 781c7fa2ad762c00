//! Node ports at 127.0.0.1 need the kernel to route packets there, which opens a door (CVE-2020-8558) that a rule of
//! ours keeps shut: it comes before the door is opened, and goes after.

use super::Iptables;
use crate::commit::Kernel;
use crate::leftovers;
use crate::listing::Seen;
use portway_dataplane::Report;

impl<K: Kernel> Iptables<K> {
    /// Has packets to 127.0.0.1 routed, once the rule is there that keeps strangers from using that.
    pub(super) fn route_localnet(&mut self, report: &mut Report) {
        let wanted = self.settings.answers_at_loopback(self.family);
        if wanted
            && self.kernel.route_localnet() == Some(false)
            && let Err(e) = self.kernel.set_route_localnet(true)
        {
            report.afterthoughts.push(format!(
                "node ports do not answer at 127.0.0.1, because route_localnet could not be set: {e}"
            ));
        }
    }

    /// Undoes that, before the rule goes.
    pub(super) fn unroute_localnet(&mut self, seen: &Seen) {
        if !self.turned_localnet_on && leftovers::turned_localnet_on(seen) {
            // An earlier run did, and what remembers it is to last.
            self.turned_localnet_on = true;
            self.rebuild_base();
        }
        if self.turned_localnet_on && !self.settings.answers_at_loopback(self.family) {
            leftovers::turn_localnet_off(&mut self.kernel);
            self.turned_localnet_on = false;
        }
    }
}
