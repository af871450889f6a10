//! Policies that are set and cleared: the writer's part.
//!
//! A change of policies is a change of every queue and exchange of the vhost for which they now come to
//! something else. All of these are one version: no shard ever has one object under the old policies and
//! another one under the new.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::policies::{self, Policy, PolicyOf};
use super::rows;
use super::writer::{Evaluation, Writer};
use super::{Change, ExchangeInfo, Outcome, QueueInfo};
use crate::{Refusal, RefusalKind, VhostId};

impl Writer {
    /// All policies: vhost, whose they are, and what they say.
    pub fn policies(&self) -> impl Iterator<Item = (&str, PolicyOf, &Policy)> {
        self.policies.iter()
    }

    pub(super) fn set_policy(
        &mut self,
        vhost: VhostId,
        of: PolicyOf,
        policy: &Policy,
    ) -> Result<Evaluation, Refusal> {
        policies::check(of, &policy.definition)?;
        let vhost_name = self.topology().vhost_name(vhost).to_owned();
        self.policies.set(&vhost_name, of, policy.clone())?;
        self.store_writes.push(rows::put_policy(&vhost_name, of, policy));
        Ok(self.policies_changed(vhost, &vhost_name))
    }

    pub(super) fn clear_policy(
        &mut self,
        vhost: VhostId,
        of: PolicyOf,
        name: &str,
    ) -> Result<Evaluation, Refusal> {
        let vhost_name = self.topology().vhost_name(vhost).to_owned();
        if !self.policies.clear(&vhost_name, of, name) {
            let what = if of == PolicyOf::User { "policy" } else { "operator policy" };
            return Err(Refusal::new(
                RefusalKind::NotFound,
                format!("no {what} '{name}' in vhost '{vhost_name}'"),
            ));
        }
        self.store_writes.push(rows::remove(rows::policy_key(&vhost_name, of, name)));
        Ok(self.policies_changed(vhost, &vhost_name))
    }

    /// Tells every object of the vhost what is asked of it now, if that is something else.
    fn policies_changed(&mut self, vhost: VhostId, vhost_name: &str) -> Evaluation {
        let mut changes = Vec::new();
        for info in self.topology().exchanges().filter(|info| info.vhost == vhost) {
            let policy = self.policies.for_exchange(vhost_name, info);
            if policy != info.policy {
                let info = ExchangeInfo { policy, ..ExchangeInfo::clone(info) };
                changes.push(Change::UpdateExchange(Arc::new(info)));
            }
        }
        let first_queue = changes.len();
        for info in self.topology().queues().filter(|info| info.vhost == vhost) {
            let policy = self.policies.for_queue(vhost_name, info);
            if policy != info.policy {
                let info = QueueInfo { policy, ..QueueInfo::clone(info) };
                changes.push(Change::UpdateQueue(Arc::new(info)));
            }
        }
        // The topology lists its queues in an order of its own: a seeded run must repeat.
        changes[first_queue..].sort_by_key(|change| match change {
            Change::UpdateQueue(info) => Some(info.id),
            _ => None,
        });
        for change in changes {
            self.change(change);
        }
        // A version of its own in any case: the policy must be stored before it is answered for.
        self.finish_stored(Outcome::Done)
    }
}
