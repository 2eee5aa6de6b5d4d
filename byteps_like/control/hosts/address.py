"""Which address a process has, and where it can listen."""

from __future__ import annotations

import errno
import ipaddress
import socket

import psutil

from byteps_like.config import Config, split_address
from byteps_like.errors import CapacityError, ConfigError, SystemCallError


def join_address(host: str, port: int) -> str:
    """The pair as host:port, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_host(config: Config) -> str:
    """The address under which peers reach this process: `host`, else `interface`'s, else the route to the scheduler's
    (of several, the first that there is one to).

    Raises ConfigError for an unknown interface or a scheduler whose name has no address.
    """
    if config.host:
        return config.host
    if config.interface:
        return _address_of(config.interface)
    if not config.scheduler:
        return "127.0.0.1"
    failure: OSError | None = None
    for host, port in [split_address("scheduler", address) for address in config.schedulers]:
        try:
            family, _, _, _, target = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)  # sends nothing: it only asks the kernel for the route
                return str(probe.getsockname()[0])
        except OSError as error:
            failure = failure or error
    raise ConfigError(f"scheduler={config.scheduler!r} can't be reached from here: {failure}") from failure


def listen_address(host: str, port: int) -> str:
    """Where to listen for peers that call `host`: there, or everywhere if `host` is not an address of this machine.

    (A Kubernetes service name, or an address in front of a NAT.) Raises SystemCallError if the port is taken,
    CapacityError without descriptors.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"{host!r} has no address: {error}") from error
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise CapacityError(f"no socket to listen on {join_address(host, port)}: {error.strerror}") from error
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return join_address("::" if family == socket.AF_INET6 else "0.0.0.0", port)
            raise SystemCallError(f"can't listen on {join_address(host, port)}: {error.strerror}") from error
    return join_address(str(target[0]), port)


def is_loopback(host: str) -> bool:
    """True if `host` is an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address_of(interface: str) -> str:
    addresses = psutil.net_if_addrs()
    if interface not in addresses:
        raise ConfigError(f"interface={interface!r} is none of {', '.join(sorted(addresses))}")
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in addresses[interface]:
            if entry.family == family:
                return entry.address.partition("%")[0]
    raise ConfigError(f"interface={interface!r} has no IP address")
