"""Policies by their texts: what is refused, in which words; and one of a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.ledger import Ledger
from byteps_like.store.policies.bounded import Asp, EachAtOnce, Ssp
from byteps_like.store.policies.partial import KOfN
from byteps_like.store.policies.policy import Contribution, Key, Policy, PushVerdict
from byteps_like.store.policies.registry import POLICIES, policy, policy_of, text_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bps", "no policy 'bps'; these are known: asp, backup, bsp, dssp, hogwild, k_of_n, ssp"),
        ("ssp", "'ssp' lacks s, as in ssp:s=1"),
        ("ssp:s", "'s' in 'ssp:s' is not key=value"),
        ("ssp:t=1", "ssp has no 't'; it has \\['s'\\]"),
        ("ssp:s=-1", "s=-1: a source can't be ahead by fewer than 0 clocks"),
        ("ssp:s=1.5", "s=1.5 is no whole number"),
        ("ssp:s=many", "s='many' is no whole number"),
        ("dssp:lo=3,hi=2", "lo=3 is greater than hi=2"),
        ("k_of_n:k=5", "k=5 contributions can't come from 4 ranks: k is at most 4"),
        ("k_of_n:k=0", "k=0: a version needs at least one contribution"),
        ("k_of_n:k=any", "k='any' is no whole number"),
        ("k_of_n:k=1,late=never", "late='never': late contributions can be \"drop\" or \"next\""),
        ("k_of_n:k=1,grace=-1", "grace=-1 is neither a number of seconds from 0 on, nor \"auto\""),
        ("k_of_n:k=1,max_age=-1", "max_age=-1 versions: no contribution is younger than 0"),
        ("backup:b=4", "b=4 spare ranks of 4 leave none: b is at most 3"),
        ("backup:b=-1", "b=-1: there can't be fewer than 0 spare ranks"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        policy_of(text, 4)


def test_a_policy_may_be_given_as_an_object() -> None:
    assert policy_of(Ssp(2), 4) == policy_of("ssp:s=2", 4)
    assert text_of(KOfN(2, late="next")) == "k_of_n:grace=0.0,k=2,late=next,max_age=inf"
    assert (
        text_of(KOfN("auto"))
        == text_of(policy_of("k_of_n:k=auto", 1))
        == "k_of_n:grace=0.0,k=auto,late=drop,max_age=inf"
    )
    assert text_of(Asp()) == "asp"
    with pytest.raises(InvalidArgumentError, match="consistency=3 is neither a policy nor the text of one"):
        policy_of(3, 4)  # type: ignore[arg-type]


@pytest.fixture
def own() -> Iterator[type[Policy]]:
    @policy
    @dataclass(frozen=True)
    class Heavy(EachAtOnce):
        """Drops light pushes."""

        name = "heavy"
        least: float = 1.0

        def on_push(self, key: Key, push: Contribution) -> PushVerdict:
            del key
            return PushVerdict.COUNT if push.weight >= self.least else PushVerdict.LATE

    yield Heavy
    del POLICIES["heavy"]


def test_a_user_s_policy_has_a_text_too(own: type[Policy]) -> None:
    key = Ledger(policy_of("heavy:least=2", 1), [0])
    for clock, weight in enumerate((1.0, 2.0, 3.0)):
        key.push(Contribution(0, clock, key.version, weight), 0.0)
    assert (key.version, key.clocks) == (2, {0: 3})


def test_a_name_that_is_taken_is_refused(own: type[Policy]) -> None:
    with pytest.raises(InvalidArgumentError, match="there is a policy 'heavy' already"):
        policy(dataclass(frozen=True)(type("Other", (Asp,), {"name": "heavy"})))
    with pytest.raises(InvalidArgumentError, match="is no dataclass"):
        policy(type("Plain", (Policy,), {"name": "plain"}))
