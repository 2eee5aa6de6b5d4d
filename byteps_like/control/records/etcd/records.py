"""Records in etcd: a changelog that only whoever holds the leader key can write."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from urllib.parse import quote

from byteps_like.control.records.etcd.calls import EtcdApi, EtcdCalls
from byteps_like.control.records.etcd.leadership import Leadership
from byteps_like.control.records.etcd.location import Location
from byteps_like.control.records.etcd.stored_log import StoredLog
from byteps_like.control.records.records import Changes
from byteps_like.errors import BytePSLikeError, RefusedError, SystemCallError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
"""Of a standby between two looks at who rules, if the etcd doesn't say that it has ended."""
_RETRY_SECONDS = 1.0


def open_etcd(address: str, job: str, *, wait: bool) -> EtcdRecords:
    """The records of `job` at an address (see Location). Raises as `open_records` does."""
    location = Location.parse(address)
    api = EtcdCalls(location)
    base = f"{location.prefix}/{quote(job, safe='')}/"
    try:
        rule = Leadership(api, f"{base}leader".encode())
        (_stand_by if wait else _claim)(rule, base)
        return EtcdRecords(api, rule, base)
    except BaseException:
        api.close()
        raise


class EtcdRecords:
    """Of one job, whose keys begin with `base`, in the term of `rule`, which is kept alive until `close`."""

    def __init__(self, api: EtcdApi, rule: Leadership, base: str) -> None:
        self._api, self._rule, self._base = api, rule, base
        self._log: StoredLog | None = None
        self._tell: Callable[[BytePSLikeError], None] | None = None
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="byteps-like-rule", daemon=True)
        self._keeper.start()

    @property
    def term(self) -> int:
        """Of the rule."""
        return self._rule.term

    def load(self) -> dict[str, bytes]:
        """All records. Raises as `commit` does, and CorruptError if some are missing."""
        self._log = StoredLog(self._rule, self._base)
        return self._log.records

    def commit(self, changes: Changes) -> None:
        """See Records."""
        self._log = self._log or StoredLog(self._rule, self._base)
        self._log.append(changes)

    def check(self) -> None:
        """See Records."""
        self._rule.check()

    def on_loss(self, tell: Callable[[BytePSLikeError], None]) -> None:
        """See Records."""
        self._tell = tell
        try:
            self._rule.check()
        except (SystemCallError, RefusedError) as error:
            tell(error)

    def close(self) -> None:
        """Lets another one rule. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            self._rule.end()
            self._api.close()
            self._keeper.join()

    def _keep(self) -> None:
        while not self._closing.wait(self._rule.pause):
            try:
                self._rule.renew()
            except (SystemCallError, RefusedError) as error:
                if self._tell is not None and not self._closing.is_set():
                    self._tell(error)
                return


def _claim(rule: Leadership, base: str) -> None:
    """Waits only for as long as one that was killed may seem to rule."""
    began = time.monotonic()
    while (holder := rule.begin()) is not None:
        left = began + rule.seconds + 1 - time.monotonic()
        if left <= 0:
            raise RefusedError(
                f"another scheduler keeps its state at {base} of this etcd and is running ({holder.name}); end it"
                " first, give this one a prefix of its own, or let it wait with --standby"
            )
        rule.await_end(holder, left)


def _stand_by(rule: Leadership, base: str) -> None:
    seen = 0
    while True:
        try:
            holder = rule.begin()
            if holder is None:
                return
            if holder.term != seen:
                log.info("standing by at %s: term %d is that of %s", base, holder.term, holder.name)
            seen = holder.term
            rule.await_end(holder, _LOOK_SECONDS)
        except SystemCallError as error:
            log.warning("standing by: %s", error)
            time.sleep(_RETRY_SECONDS)
