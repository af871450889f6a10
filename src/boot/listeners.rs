//! Binds the addresses to listen on.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::port_holder;

/// Connections that may wait to be accepted. The kernel cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// How long a taken port may still become free.
const TAKEN_PATIENCE: Duration = Duration::from_secs(1);
/// How often to look.
const TAKEN_RETRY: Duration = Duration::from_millis(50);

/// An address that cannot be listened on.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Somebody else does.
    #[error(
        "cannot listen on {address}: the port is taken by {holder}; stop that, or choose another with --listen"
    )]
    Taken {
        /// The address.
        address: SocketAddr,
        /// Who has it, or how to find out.
        holder: String,
    },
    /// A low port without the right to it.
    #[error(
        "cannot listen on {address}: ports below 1024 need CAP_NET_BIND_SERVICE; grant it (AmbientCapabilities= \
         in the systemd unit), or choose another port with --listen"
    )]
    Privileged {
        /// The address.
        address: SocketAddr,
    },
    /// Not an address of this host.
    #[error(
        "cannot listen on {address}: this host has no such address; choose one of `ip address` with --listen"
    )]
    NoSuchAddress {
        /// The address.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Other {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// Listens on all of the addresses, or on none.
///
/// The port is not shared (`SO_REUSEPORT`): a second broker must fail and not take half of the connections.
pub(super) fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, ListenError> {
    addresses.iter().map(|address| listen(*address).map_err(|error| explain(*address, error))).collect()
}

/// A process that was killed keeps its sockets until the kernel has taken its rings apart: a broker that
/// is started again at once gets its port after some milliseconds.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + TAKEN_PATIENCE;
    loop {
        match listen_once(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(TAKEN_RETRY);
            }
            result => return result,
        }
    }
}

fn listen_once(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of the broker that ran before may linger in TIME_WAIT; they must not keep it from starting.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn explain(address: SocketAddr, source: io::Error) -> ListenError {
    match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::Taken { address, holder: port_holder::describe(address) },
        io::ErrorKind::PermissionDenied if address.port() < 1024 => ListenError::Privileged { address },
        io::ErrorKind::AddrNotAvailable => ListenError::NoSuchAddress { address },
        _ => ListenError::Other { address, source },
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_listener_takes_connections_and_does_not_block() {
        let listeners = bind(&["127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()]).unwrap();
        assert_eq!(listeners.len(), 2);
        assert_eq!(listeners[0].accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        TcpStream::connect(listeners[1].local_addr().unwrap()).unwrap();
    }

    #[test]
    fn a_port_that_becomes_free_in_time_is_taken() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let waiting = thread::spawn(move || bind(&[address]).map(|_| ()));
        // Whether it has begun to wait by now or not, the port is free in time.
        drop(other);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn a_taken_port_is_refused_and_names_who_has_it() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let text = bind(&[address]).unwrap_err().to_string();
        assert!(text.contains(&address.to_string()) && text.contains("--listen"), "{text}");
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }

    #[test]
    fn a_second_broker_does_not_get_the_port_of_the_first() {
        let first = bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let error = bind(&[first[0].local_addr().unwrap()]).unwrap_err();
        assert!(matches!(error, ListenError::Taken { .. }), "{error}");
    }

    #[test]
    fn an_address_of_another_host_is_refused() {
        // From the block for documentation (RFC 5737).
        let error = bind(&["192.0.2.1:5672".parse().unwrap()]).unwrap_err();
        assert!(matches!(error, ListenError::NoSuchAddress { .. }), "{error}");
    }

    #[test]
    fn other_reasons_have_their_own_advice() {
        let low: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let text = |address, errno| explain(address, io::Error::from_raw_os_error(errno)).to_string();
        assert!(text(low, libc::EACCES).contains("CAP_NET_BIND_SERVICE"));
        assert!(text("[::1]:5672".parse().unwrap(), libc::EAFNOSUPPORT).contains("[::1]:5672"));
    }
}
