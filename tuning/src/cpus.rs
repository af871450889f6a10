//! Which CPUs this process may run on.

use std::io;

use thiserror::Error;

use crate::{cgroup, sys};

/// The CPUs that the process may run on, and how many of them at full speed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpus {
    /// Numbers of the CPUs, rising; at least one.
    pub allowed: Vec<usize>,
    /// The control group's quota in CPUs, where there is one.
    pub quota: Option<f64>,
}

/// CPUs that were asked for and are not to be had.
#[derive(Debug, Error)]
pub enum CpusError {
    /// Some are not allowed to this process.
    #[error(
        "CPU {missing} is not available to this process, which may run on {}; choose among those",
        format_list(allowed)
    )]
    NotAllowed {
        /// The first that is not.
        missing: usize,
        /// Those that are.
        allowed: Vec<usize>,
    },
    /// The system does not say which there are.
    #[error("cannot find out which CPUs this process may run on: {0}; name them with --cpus")]
    Unknown(#[from] io::Error),
}

impl Cpus {
    /// Asks the scheduler and the control group.
    ///
    /// # Errors
    /// [`CpusError::Unknown`].
    pub fn of_this_process() -> Result<Cpus, CpusError> {
        Ok(Cpus { allowed: sys::affinity()?, quota: cgroup::limits().cpus })
    }

    /// One CPU for each shard, when nothing was asked for: all allowed ones, but no more than the quota
    /// keeps at full speed. A shard that the quota stops in the middle stops everybody who waits for it.
    pub fn default_placement(&self) -> Vec<usize> {
        let most = self.quota.map_or(usize::MAX, |quota| (quota as usize).max(1));
        self.allowed.iter().copied().take(most).collect()
    }

    /// One CPU for each of so many shards, going round when there are more shards than CPUs.
    pub fn place(&self, shards: usize) -> Vec<usize> {
        self.allowed.iter().copied().cycle().take(shards).collect()
    }

    /// The CPUs asked for, if this process may run on all of them.
    ///
    /// # Errors
    /// [`CpusError::NotAllowed`].
    pub fn choose(&self, wanted: &[usize]) -> Result<Vec<usize>, CpusError> {
        match wanted.iter().find(|cpu| !self.allowed.contains(cpu)) {
            Some(&missing) => Err(CpusError::NotAllowed { missing, allowed: self.allowed.clone() }),
            None => Ok(wanted.to_vec()),
        }
    }
}

/// Reads a list such as `0-3,8`; none if it is not one, is empty, or names a CPU twice.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    /// Beyond any machine; keeps `0-99999999999` from being written out.
    const NUMBER_MAX: usize = 16_383;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > NUMBER_MAX {
            return None;
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return None;
            }
            cpus.push(cpu);
        }
    }
    Some(cpus)
}

/// Writes a rising list the way [`parse_list`] reads it, runs as ranges.
pub fn format_list(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b);
    let texts = runs.map(|run| match run {
        [single] => single.to_string(),
        [first, second] => format!("{first},{second}"),
        [first, .., last] => format!("{first}-{last}"),
        [] => unreachable!("chunk_by yields no empty chunks"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_their_ranges() {
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("4-6,1, 9"), Some(vec![4, 5, 6, 1, 9]));
        for wrong in ["", ",", "a", "1-", "-1", "3-1", "1,1", "0-2,1", "1,,2", "0-99999999999"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lists_are_written_so_that_they_can_be_read() {
        for (cpus, text) in [(vec![0], "0"), (vec![0, 1], "0,1"), (vec![0, 1, 2, 3, 7, 9, 10], "0-3,7,9,10")]
        {
            assert_eq!(format_list(&cpus), text);
            assert_eq!(parse_list(text), Some(cpus));
        }
    }

    #[test]
    fn a_quota_limits_how_many_cpus_are_used_without_being_asked() {
        let cpus = |quota| Cpus { allowed: vec![2, 3, 6, 7], quota };
        assert_eq!(cpus(None).default_placement(), [2, 3, 6, 7]);
        assert_eq!(cpus(Some(2.0)).default_placement(), [2, 3]);
        assert_eq!(cpus(Some(2.9)).default_placement(), [2, 3]);
        assert_eq!(cpus(Some(0.5)).default_placement(), [2]);
        assert_eq!(cpus(Some(64.0)).default_placement(), [2, 3, 6, 7]);
    }

    #[test]
    fn more_shards_than_cpus_go_round() {
        let cpus = Cpus { allowed: vec![2, 3], quota: None };
        assert_eq!(cpus.place(1), [2]);
        assert_eq!(cpus.place(5), [2, 3, 2, 3, 2]);
    }

    #[test]
    fn a_cpu_outside_the_affinity_is_refused_by_name() {
        let cpus = Cpus { allowed: vec![0, 1, 2, 5], quota: None };
        assert_eq!(cpus.choose(&[5, 0]).unwrap(), [5, 0]);
        let text = cpus.choose(&[0, 4]).unwrap_err().to_string();
        assert_eq!(
            text,
            "CPU 4 is not available to this process, which may run on 0-2,5; choose among those"
        );
    }

    #[test]
    fn this_process_runs_somewhere() {
        let cpus = Cpus::of_this_process().unwrap();
        assert!(!cpus.default_placement().is_empty());
    }
}
