//! Finds out who listens on a port, for an error's text. Reads `/proc` as far as this user may.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// `the process with pid 7 (beam.smp)`, or how to find out.
pub(super) fn describe(address: SocketAddr) -> String {
    let port = address.port();
    let process = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .find_map(|inode| process_with_socket(&inode));
    match process {
        Some(process) => process,
        None => format!("another process (as root, `ss -ltnp sport = :{port}` names it)"),
    }
}

/// Inodes of the sockets that listen on the port, from a table in the format of `/proc/net/tcp`.
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let local_port = format!(":{port:04X}");
    let mut inodes = Vec::new();
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [_, local, _, LISTEN, _, _, _, _, _, inode, ..] = columns[..]
            && local.ends_with(&local_port)
        {
            inodes.push(inode.to_owned());
        }
    }
    inodes
}

fn process_with_socket(inode: &str) -> Option<String> {
    let link = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids = pids.filter(|pid| has_descriptor(&Path::new("/proc").join(pid.to_string()), &link));
    let pid = pids.next()?;
    if pid == std::process::id() {
        return Some(format!("this process itself (pid {pid}), for another address of the list"));
    }
    Some(match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("the process with pid {pid} ({})", name.trim()),
        Err(_) => format!("the process with pid {pid}"),
    })
}

fn has_descriptor(process: &Path, link: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1628 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11111 1 0 100 0 0 10 0
   1: 0100007F:1628 0100007F:A000 01 00000000:00000000 00:00000000 00000000     0        0 22222 1 0 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33333 1 0 100 0 0 10 0
";

    #[test]
    fn only_sockets_that_listen_on_the_port_are_found() {
        assert_eq!(listening_inodes(TABLE, 5672), ["11111"]);
        assert_eq!(listening_inodes(TABLE, 22), ["33333"]);
        assert!(listening_inodes(TABLE, 80).is_empty());
    }

    #[test]
    fn a_port_that_nobody_can_be_seen_on_says_how_to_find_out() {
        assert!(describe("127.0.0.1:0".parse().unwrap()).contains("ss -ltnp"));
    }
}
