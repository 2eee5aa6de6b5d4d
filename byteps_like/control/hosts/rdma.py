"""Whether this process speaks RDMA, and under which address: what the settings wish, and what the host has."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from byteps_like.config import Config
from byteps_like.control.hosts.address import is_loopback
from byteps_like.control.hosts.routes import scheme_of, usable_urls
from byteps_like.control.types import Member
from byteps_like.errors import ConfigError

log = logging.getLogger(__name__)


class RdmaAddress(NamedTuple):
    """An IP address of this host ("10.0.0.2", "[fd00::1]") that belongs to an active port of an RDMA device."""

    host: str
    device: str


class RdmaHost(NamedTuple):
    """What the host has: `why` it has no RDMA ("" if it has), and its addresses in the order of its interfaces."""

    why: str
    addresses: tuple[RdmaAddress, ...] = ()


@functools.cache
def rdma_host() -> RdmaHost:
    """Looks for devices, once per process; without a device that took 5 ms, most of it to load the libraries."""
    try:
        import byteps_like._core as _core
    except ImportError as error:
        return RdmaHost(f"the native core is missing ({error})")
    why, addresses = _core.rdma_host()
    return RdmaHost(why, tuple(RdmaAddress(*one) for one in addresses))


Probe = Callable[[], RdmaHost]


def rdma_listen_url(config: Config, host: str, probe: Probe | None = None) -> str:
    """Where to listen by RDMA for peers that call this process `host`; "" if it doesn't, for a reason that is logged.

    Each of `rdma_devices` is a rail; without the setting the device of `host` is the only one, or the first. Raises
    ConfigError with the reason if RDMA is required and can't be used.
    """
    wish = _wish(config)
    if wish == "off" or (wish == "auto" and is_loopback(host)):
        return ""
    if why := _why_not(config, probe):
        if wish == "require":
            raise _unusable(config, why)
        # Who has named devices expects them to be used.
        log.log(logging.WARNING if config.rdma_devices else logging.DEBUG, "no RDMA addresses: %s", why)
        return ""
    rails = ",".join(rail.host for rail in _rails(config, host, (probe or rdma_host)().addresses))
    return f"rdma://{rails}:0{_query('?', config)}"


def server_urls(config: Config, server: Member, own_host_id: str, probe: Probe | None = None) -> list[str]:
    """The addresses of a server that this process may use, best first. Raises ConfigError when none is left."""
    whom = f"server {server.rank} on {server.host}"
    return peer_urls(config, server.urls, server.host_id == own_host_id, whom, probe)


def peer_urls(config: Config, offered: Sequence[str], near: bool, whom: str, probe: Probe | None = None) -> list[str]:
    """Which of a peer's addresses this process may use, best first; `near`: on the same host.

    Those of RDMA say which devices of this host to use. The host is looked at only if the peer offers one; if it can't
    use it the next address serves, and why is logged, once. If RDMA is required those of TCP are left out. Raises
    ConfigError, calling the peer `whom`, with the reason if no address is left.
    """
    wish = _wish(config)
    calls = [url for url in offered if url.startswith("rdma://")]
    if wish == "require" and not near and not calls:
        raise ConfigError(
            f"{_demand(config)}, but {whom} offers no RDMA, only {', '.join(offered) or 'nothing'};"
            " `byteps-like doctor` says why, over there"
        )
    why = _why_not(config, probe) if calls and wish != "off" else ""
    if why and wish == "require":
        raise _unusable(config, why)
    if why:
        _say_once(f"peers offer RDMA, but links to them use the next address: {why}")
    left_out = ("rdma://",) if why or wish == "off" else ("tcp://", "tls+tcp://") if wish == "require" else ()
    urls = [_with_own_devices(config, url) for url in offered if not url.startswith(left_out)]
    return usable_urls(config.transport, urls, near, whom, encrypts=config.tls == "on")


def _with_own_devices(config: Config, url: str) -> str:
    return url + _query("&" if "?" in url else "?", config) if url.startswith("rdma://") else url


def _unusable(config: Config, why: str) -> ConfigError:
    return ConfigError(f"{_demand(config)}, but this host can't use RDMA: {why}; run `byteps-like doctor` for details")


def _wish(config: Config) -> str:
    """What the settings `rdma`, `transport` and `tls` make of each other."""
    wish = _wish_in_the_clear(config)
    if config.tls == "off" or config.tls_rdma == "clear":
        return wish
    if wish == "require":
        raise ConfigError(
            f"{_demand(config)} and tls='on' contradict each other, since RDMA is not encrypted; tls_rdma='clear'"
            " accepts that"
        )
    return "off"


def _wish_in_the_clear(config: Config) -> str:
    scheme = scheme_of(config.transport)
    if scheme == "rdma":
        if config.rdma == "off":
            raise ConfigError(f"transport={config.transport!r} and rdma='off' leave no transport; drop one of them")
        return "require"
    if scheme == "auto":
        return config.rdma
    if config.rdma == "require":
        raise ConfigError(f"rdma='require' and transport={config.transport!r} contradict each other; drop one of them")
    return "off"


def _demand(config: Config) -> str:
    return "rdma='require'" if config.rdma == "require" else f"transport={config.transport!r}"


def _why_not(config: Config, probe: Probe | None) -> str:
    host = (probe or rdma_host)()
    if host.why:
        return host.why
    known = {address.device for address in host.addresses}
    unknown = [name for name in _devices(config) if name not in known]
    if not unknown:
        return ""
    return f"rdma_devices={config.rdma_devices!r}: {', '.join(unknown)} is none of {', '.join(sorted(known))}"


def _devices(config: Config) -> list[str]:
    return [name.strip() for name in config.rdma_devices.split(",") if name.strip()]


def _rails(config: Config, host: str, addresses: tuple[RdmaAddress, ...]) -> list[RdmaAddress]:
    """One address per device: that which peers call anyway, else one of its kind (IPv4, IPv6), else the first."""

    def strangeness(address: RdmaAddress) -> tuple[bool, bool]:
        own = address.host.strip("[]")
        return own != host, (":" in own) != (":" in host)

    names = _devices(config)
    if not names:
        return [min(addresses, key=strangeness)]
    return [min((one for one in addresses if one.device == name), key=strangeness) for name in names]


def _query(begin: str, config: Config) -> str:
    """What an address says of this side's devices."""
    parts = [f"device={','.join(_devices(config))}"] if _devices(config) else []
    parts += [f"gid={config.rdma_gid_index}"] if config.rdma_gid_index >= 0 else []
    return begin + "&".join(parts) if parts else ""


@functools.cache
def _say_once(text: str) -> None:
    log.info("%s", text)
