//! Where devices are: NUMA nodes of network and disk, and which CPUs their interrupts go to.

use std::path::Path;

use crate::cpus::format_list;
use crate::doctor::Subject;
use crate::doctor::finding::{Check, Finding, Fix};
use crate::doctor::host::Host;
use crate::doctor::mount::{Mount, disk_of};

const NODES: &str = "sys/devices/system/node";
const INTERFACES: &str = "sys/class/net";

const NETWORK: Check = Check {
    name: "network NUMA node",
    reason: "Each packet crosses from one socket of the machine to the other when the card is not where the shards \
             are.",
};

pub(in crate::doctor) fn network(host: &Host, subject: &Subject) -> Finding {
    let Some(nodes) = Nodes::of(host) else {
        return NETWORK.cannot_tell(format!("no /{NODES}"));
    };
    if nodes.0.len() == 1 {
        return NETWORK.ok("there is one node");
    }
    let cards: Vec<(String, usize)> = interfaces(host)
        .into_iter()
        .filter_map(|name| Some((name.clone(), node_of(host, &format!("{INTERFACES}/{name}/device"))?)))
        .collect();
    if cards.is_empty() {
        return NETWORK.cannot_tell("no network card says on which node it is");
    }
    let found: Vec<_> = cards.iter().map(|(name, node)| format!("{name} on node {node}")).collect();
    judge(&NETWORK, &nodes, subject, found.join(", "), &cards)
}

const STORAGE: Check = Check {
    name: "disk NUMA node",
    reason: "Each write crosses from one socket of the machine to the other when the disk is not where the shards \
             are.",
};

pub(in crate::doctor) fn storage(host: &Host, subject: &Subject, directory: &Path) -> Finding {
    let Some(nodes) = Nodes::of(host) else {
        return STORAGE.cannot_tell(format!("no /{NODES}"));
    };
    if nodes.0.len() == 1 {
        return STORAGE.ok("there is one node");
    }
    let disk = Mount::of(host, directory).and_then(|mount| disk_of(host, &mount));
    let node = disk.as_ref().and_then(|disk| node_of(host, disk.to_str()?));
    let (Some(disk), Some(node)) = (disk, node) else {
        return STORAGE.cannot_tell("the disk of the data directory does not say on which node it is");
    };
    let name = disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
    judge(&STORAGE, &nodes, subject, format!("{name} on node {node}"), &[(name, node)])
}

/// Shards away from all the devices get advice.
fn judge(
    check: &Check,
    nodes: &Nodes,
    subject: &Subject,
    found: String,
    devices: &[(String, usize)],
) -> Finding {
    let near = |cpu: &usize| {
        nodes.0.iter().any(|(node, cpus)| devices.iter().any(|(_, at)| at == node) && cpus.contains(cpu))
    };
    let far: Vec<usize> = subject.shard_cpus().iter().copied().filter(|cpu| !near(cpu)).collect();
    if far.is_empty() {
        return check.ok(found);
    }
    let good = nodes.0.iter().find(|(node, _)| devices.first().is_some_and(|(_, at)| at == node));
    let list = good.map_or_else(String::new, |(_, cpus)| format_list(cpus));
    check.advice(
        format!("{found}; shards on CPU {} are elsewhere", format_list(&far)),
        Fix::by_hand(format!("choose `cpus` among {list}, or move the device to another slot")),
    )
}

const INTERRUPTS: Check = Check {
    name: "network interrupts",
    reason: "The CPU that gets all interrupts of the network card has less time for its shard, and all the others wait \
             for it.",
};

pub(in crate::doctor) fn interrupts(host: &Host, subject: &Subject) -> Finding {
    let mut seen = Vec::new();
    for name in interfaces(host) {
        let numbers = interrupt_numbers(host, &name);
        let targets: Vec<Vec<usize>> = numbers
            .iter()
            .filter_map(|number| {
                let irq = format!("proc/irq/{number}");
                host.cpu_list(format!("{irq}/effective_affinity_list"))
                    .filter(|list| !list.is_empty())
                    .or_else(|| host.cpu_list(format!("{irq}/smp_affinity_list")))
            })
            .collect();
        let mut cpus = targets.concat();
        cpus.sort_unstable();
        cpus.dedup();
        if !cpus.is_empty() {
            seen.push((name, targets.len(), cpus));
        }
    }
    if seen.is_empty() {
        return INTERRUPTS.cannot_tell("no network card whose interrupts are to be seen");
    }
    let found: Vec<_> = seen
        .iter()
        .map(|(name, count, cpus)| format!("{name}: {count} interrupts on CPU {}", format_list(cpus)))
        .collect();
    let crowded = seen.iter().find(|(_, count, cpus)| *count > 1 && cpus.len() == 1);
    match crowded {
        Some((name, ..)) if subject.shard_cpus().len() > 1 => INTERRUPTS.advice(
            found.join("; "),
            Fix::command(format!(
                "c=0; for i in /{INTERFACES}/{name}/device/msi_irqs/* /{INTERFACES}/{name}/device/../msi_irqs/*; do \
                 [ -e \"$i\" ] || continue; echo $((c % $(nproc))) > /proc/irq/${{i##*/}}/smp_affinity_list || true; \
                 c=$((c + 1)); done"
            )),
        ),
        _ => INTERRUPTS.ok(found.join("; ")),
    }
}

/// Interfaces with a device behind them: neither loopback nor a bridge.
fn interfaces(host: &Host) -> Vec<String> {
    let names = host.names(INTERFACES).unwrap_or_default();
    names.into_iter().filter(|name| host.names(format!("{INTERFACES}/{name}/device")).is_some()).collect()
}

/// Those of the card; a virtual card's are its bus device's.
fn interrupt_numbers(host: &Host, interface: &str) -> Vec<String> {
    let Some(device) = host.follow(format!("{INTERFACES}/{interface}/device")) else { return Vec::new() };
    [Some(device.as_path()), device.parent()]
        .into_iter()
        .flatten()
        .find_map(|path| host.names(path.join("msi_irqs")))
        .unwrap_or_default()
}

/// NUMA nodes and their CPUs.
struct Nodes(Vec<(usize, Vec<usize>)>);

impl Nodes {
    fn of(host: &Host) -> Option<Nodes> {
        let names = host.names(NODES)?;
        let numbers = names.iter().filter_map(|name| name.strip_prefix("node")?.parse::<usize>().ok());
        let nodes: Vec<_> = numbers
            .filter_map(|node| Some((node, host.cpu_list(format!("{NODES}/node{node}/cpulist"))?)))
            .collect();
        (!nodes.is_empty()).then_some(Nodes(nodes))
    }
}

/// The node that a device, or the bus that it is on, belongs to; -1 stands for none.
fn node_of(host: &Host, path: &str) -> Option<usize> {
    let device = host.follow(path)?;
    device.ancestors().find_map(|path| host.number::<i64>(path.join("numa_node")))?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::doctor::finding::Verdict;
    use crate::doctor::host::tests::host;
    use crate::test_dir::TestDir;

    fn subject(cpus: &[usize]) -> Subject {
        Subject {
            data_dir: PathBuf::from("/data"),
            cpus: Ok(cpus.to_vec()),
            dedicated: true,
            syncs: true,
            disk_free_limit_bytes: 0,
        }
    }

    /// Two nodes with two CPUs each; a card with two interrupts and a disk, both on node 1.
    fn machine(interrupts: [&str; 2]) -> (Host, TestDir) {
        let (host, dir) = host(&[
            ("proc/self/mountinfo", "1 0 8:0 / / rw - ext4 /dev/sda rw\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node1/cpulist", "2-3\n"),
            ("sys/devices/pci0/card/numa_node", "1\n"),
            ("sys/devices/pci0/card/msi_irqs/40", "msix\n"),
            ("sys/devices/pci0/card/msi_irqs/41", "msix\n"),
            ("proc/irq/40/effective_affinity_list", interrupts[0]),
            ("proc/irq/41/smp_affinity_list", interrupts[1]),
            ("sys/devices/pci0/ctl/numa_node", "1\n"),
            ("sys/devices/pci0/ctl/block/sda/queue/scheduler", "[none]\n"),
            ("sys/class/net/lo/mtu", "65536\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
        ]);
        let sys = dir.path().join("sys");
        symlink(sys.join("devices/pci0/card"), sys.join("class/net/eth0/device")).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        symlink(sys.join("devices/pci0/ctl/block/sda"), sys.join("dev/block/8:0")).unwrap();
        (host, dir)
    }

    #[test]
    fn shards_belong_where_card_and_disk_are() {
        let (host, _dir) = machine(["2\n", "3\n"]);
        let root = Path::new("/");
        assert_eq!(network(&host, &subject(&[2, 3])).verdict, Verdict::Ok);
        assert_eq!(storage(&host, &subject(&[2, 3]), root).verdict, Verdict::Ok);
        for far in [network(&host, &subject(&[1, 2])), storage(&host, &subject(&[1, 2]), root)] {
            assert_eq!(far.verdict, Verdict::Advice);
            assert!(far.found.contains("on node 1; shards on CPU 1 are elsewhere"), "{}", far.found);
            let text = "choose `cpus` among 2,3, or move the device to another slot";
            assert_eq!(far.fix, Some(Fix::by_hand(text)));
        }
    }

    #[test]
    fn one_node_is_near_to_everything() {
        let (host, _dir) = host(&[("sys/devices/system/node/node0/cpulist", "0-1\n")]);
        assert_eq!(network(&host, &subject(&[0, 1])).verdict, Verdict::Ok);
        assert_eq!(storage(&host, &subject(&[0, 1]), Path::new("/")).verdict, Verdict::Ok);
    }

    #[test]
    fn interrupts_that_all_go_to_one_cpu_are_spread() {
        let found = |interrupts| interrupts_on(machine(interrupts));
        fn interrupts_on((host, _dir): (Host, TestDir)) -> Finding {
            interrupts(&host, &subject(&[2, 3]))
        }
        assert_eq!(found(["2\n", "3\n"]).verdict, Verdict::Ok);
        let crowded = found(["2\n", "2\n"]);
        assert_eq!(crowded.verdict, Verdict::Advice);
        assert_eq!(crowded.found, "eth0: 2 interrupts on CPU 2");
        let Some(Fix::Command(line)) = crowded.fix else { panic!("{:?}", crowded.fix) };
        assert!(line.contains("smp_affinity_list"), "{line}");
    }

    #[test]
    fn what_the_host_does_not_say_is_not_held_against_it() {
        let (empty, _dir) = host(&[]);
        let subject = subject(&[0]);
        assert_eq!(network(&empty, &subject).verdict, Verdict::CannotTell);
        assert_eq!(storage(&empty, &subject, Path::new("/")).verdict, Verdict::CannotTell);
        assert_eq!(interrupts(&empty, &subject).verdict, Verdict::CannotTell);
    }
}
