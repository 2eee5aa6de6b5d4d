"""`byteps-like doctor` on RDMA, over a /sys/class/infiniband of our own making."""

import resource

import pytest

from byteps_like.control.hosts.rdma import RdmaAddress, RdmaHost
from byteps_like.launch.hosts import rdma
from byteps_like.launch.hosts.host import Grade

LINK_LOCAL = "fe80:0000:0000:0000:34f0:81ff:fec0:f243"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"


@pytest.fixture
def make_port(tmp_path, monkeypatch):
    """Makes a port's folder, with what differs from a good RoCE port; doctor sees it instead of this host's."""
    for name in ("DEVICES", "INTERFACES", "NODES"):
        monkeypatch.setattr(rdma, name, tmp_path / name)
        (tmp_path / name).mkdir()

    def make(device="mlx5_0", state="4: ACTIVE", gids=((V2, IPV4),), mtu=9000, layer="Ethernet"):
        folder = tmp_path / "DEVICES" / device / "ports" / "1"
        files = {"state": state, "rate": "100 Gb/sec (4X EDR)", "link_layer": layer}
        for index, (kind, address) in enumerate(gids):
            files |= {f"gids/{index}": address, f"gid_attrs/types/{index}": kind}
            files |= {f"gid_attrs/ndevs/{index}": "eth0"} if layer == "Ethernet" else {}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n")
        (tmp_path / "INTERFACES" / "eth0").mkdir(exist_ok=True)
        (tmp_path / "INTERFACES" / "eth0" / "mtu").write_text(f"{mtu}\n")

    return make


def test_a_good_port_is_described(make_port):
    make_port(gids=((V1, LINK_LOCAL), (V2, LINK_LOCAL), (V1, IPV4), (V2, IPV4), (V2, EMPTY)))
    (row,) = rdma.ports()
    assert (row.name, row.state, row.fix) == ("RDMA port mlx5_0/1", Grade.OK, "")
    assert row.value == "100 Gb/sec (4X EDR) on eth0, GID 3 (10.77.0.1), packets of 4096 bytes (MTU 9000)"


def test_without_an_ipv4_address_the_first_gid_of_version_2_is_taken(make_port):
    make_port(gids=((V1, LINK_LOCAL), (V2, LINK_LOCAL)))
    (row,) = rdma.ports()
    assert "GID 1 (fe80::34f0:81ff:fec0:f243)" in row.value


@pytest.mark.parametrize(
    ("differs", "value", "fix"),
    [
        ({"state": "1: DOWN"}, "DOWN on eth0", "bring eth0 up"),
        ({"gids": ((V1, IPV4),)}, "no GID of RoCE v2", "give eth0 an IP address"),
        ({"mtu": 1500}, "packets of 1024 bytes (MTU 1500)", "ip link set eth0 mtu 4200"),
        ({"mtu": 4187}, "packets of 2048 bytes (MTU 4187)", "packets of 4096 bytes for 2048"),
    ],
)
def test_what_is_wrong_with_a_port_and_what_to_do(make_port, differs, value, fix):
    make_port(**differs)
    (row,) = rdma.ports()
    assert row.state is Grade.WARN
    assert value in row.value
    assert fix in row.fix


def test_infiniband_has_neither_interface_nor_versions_of_gids(make_port):
    make_port(layer="InfiniBand", gids=((V1, LINK_LOCAL),))
    (row,) = rdma.ports()
    assert row.value == "100 Gb/sec (4X EDR), GID 0 (fe80::34f0:81ff:fec0:f243)"


def test_device_files_that_a_container_lacks_are_named(make_port, tmp_path):
    assert list(rdma.device_files()) == []
    make_port()
    (row,) = rdma.device_files()
    assert (row.state, "uverbs0" in row.value, "--device /dev/infiniband" in row.fix) == (Grade.WARN, True, True)
    for name in ("uverbs0", "rdma_cm"):
        (tmp_path / "NODES" / name).touch()
    (row,) = rdma.device_files()
    assert row.state is Grade.OK


def test_libraries_and_locked_memory_matter_only_where_there_is_a_device(make_port, monkeypatch):
    monkeypatch.setattr(rdma, "_loads", lambda library: "cm" not in library)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    assert [rdma.libraries().state, rdma.locked_memory().state] == [Grade.OK, Grade.OK]
    make_port()
    row = rdma.libraries()
    assert (row.state, row.value) == (Grade.WARN, "mlx5_0; no librdmacm.so.1")
    assert rdma.locked_memory().state is Grade.WARN


def test_what_the_core_finds_is_shown_where_there_is_a_device(make_port, monkeypatch):
    assert list(rdma.addresses()) == []
    make_port()
    address = RdmaAddress("10.0.0.2", "mlx5_0")
    monkeypatch.setattr(rdma, "rdma_host", lambda: RdmaHost("", (address,)))
    (row,) = rdma.addresses()
    assert (row.state, row.value) == (Grade.OK, "10.0.0.2 on mlx5_0")
    monkeypatch.setattr(rdma, "rdma_host", lambda: RdmaHost("no permission on uverbs0"))
    (row,) = rdma.addresses()
    assert (row.state, row.value) == (Grade.WARN, "no permission on uverbs0")
