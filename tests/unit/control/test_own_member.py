"""What a process says of itself when it joins."""

from __future__ import annotations

import os

import pytest

from byteps_like.config import Config
from byteps_like.control.hosts.member import own_member
from byteps_like.control.hosts.routes import host_id
from byteps_like.control.types import Member, MemberRole
from byteps_like.errors import ConfigError


def test_all_that_a_process_knows_is_told():
    config = Config(rank=2, world_size=4, host="10.0.0.7", link_gbps=25.0)
    own = own_member(config, MemberRole.SERVER, urls=("tcp://10.0.0.7:1",), shards=3)
    assert own == Member(
        MemberRole.SERVER, 2, host_id(), "10.0.0.7", os.getpid(), ("tcp://10.0.0.7:1",), shards=3, gbps=25.0
    )


def test_a_process_without_an_address_can_still_say_who_it_is():
    config = Config(interface="nowhere0")
    with pytest.raises(ConfigError, match="nowhere0"):
        own_member(config, MemberRole.WORKER)
    assert own_member(config, MemberRole.WORKER, host_id="", gbps=0.0).pid == os.getpid()


def test_the_jobs_settings_come_before_the_defaults_here():
    config = Config(rank=1, world_size=2)
    held = config.held_to({"partition_bytes": "8192", "stall_timeout": "7.5", "rank": "9", "unheard_of": "1"})
    assert (held.partition_bytes, held.stall_timeout, held.rank) == (8192, 7.5, 1)
    assert not Config(elastic=True).held_to({"elastic": "False"}).elastic
