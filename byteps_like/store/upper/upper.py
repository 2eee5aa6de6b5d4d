"""The group of servers above those of several jobs: what users say of it, and this process as a member of its job."""

from __future__ import annotations

import atexit
import threading
from typing import Any

from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.registry import combining_by
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import policy_of
from byteps_like.store.policies.unlocked import Hogwild
from byteps_like.store.updates.plain import Add, Assign, NoUpdate
from byteps_like.store.updates.registry import update_of
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.worker.api import Worker
from byteps_like.worker.current import join_beside


class Upper:
    """A job whose servers are above those of other jobs, the sites, and whose workers are these.

    Every so many versions a site contributes to it how far its values have come, and its servers move them towards what
    the upper group has. No rank waits for that. Kim et al., "HALoS: Hierarchical asynchronous local SGD over slow
    networks for geo-distributed large language model training", ICML 2025.
    """

    def __init__(
        self,
        scheduler: str,
        *,
        sites: int,
        every: int,
        merge: float,
        site: int = -1,
        servers: int = 1,
        consistency: Policy | str = "asp",
        update: ValueUpdate | str = "add",
        combine: str = "mean",
        **settings: Any,
    ) -> None:
        """All ranks of a site make it with the same arguments, and give it to as many stores as they like; those of
        other sites have the same names, shapes and dtypes.

        scheduler: host:port of the upper job's scheduler, which rank 0 of each site reaches, as its servers.
        sites: how many there are: the workers of the upper job. `site`: the number of this one, from 0; -1: as they
            come. Values begin everywhere as those of site 0. `servers`: how many the upper job has.
        every: versions of a tensor between two exchanges.
        merge: how much of it becomes the upper group's value then, from 0 to 1: value = (1 - merge)·value +
            merge·upper.
        consistency, update, combine: those of the upper group's store, whose ranks are the sites: what it does with how
            far the sites' values have come. "add" adds that; updates that take gradients get it with its sign turned.
        settings: others of this process in the upper job, by their names as in Config: secret_file, job, host,
            stall_timeout. The environment has those of the site's own.

        Raises InvalidArgumentError for values out of bounds, and ConfigError for settings that can't be.
        """
        for name, given in (("sites", sites), ("every", every), ("servers", servers)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise InvalidArgumentError(f"Upper: {name}={given!r} must be a whole number, at least 1")
        if not 0 <= merge <= 1:
            raise InvalidArgumentError(f"Upper: merge={merge} of the upper group's value must be from 0 to 1")
        self.every, self.merge = every, float(merge)
        self.consistency = policy_of(consistency, sites)
        self.update = update_of(update) if isinstance(update, str) else update
        self.combine = combine
        self.adds_integers = combining_by(combine, None, None).adds_integers
        if isinstance(self.update, NoUpdate | Assign):
            raise InvalidArgumentError(f"Upper: update={self.update.name} can't take how far values have come; use add")
        if isinstance(self.consistency, Hogwild):
            raise InvalidArgumentError("Upper: consistency=hogwild has no servers, and sites share no memory")
        self._config = Config.from_env(
            {}, role="worker", scheduler=scheduler, world_size=sites, rank=site, num_servers=servers, **settings
        )
        self._worker: Worker | None = None
        self._users = 0
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Of its scheduler."""
        return self._config.scheduler

    @property
    def takes_changes(self) -> bool:
        """Whether its update adds; else it subtracts, as of gradients."""
        return isinstance(self.update, Add)

    @property
    def joined(self) -> bool:
        """Whether this process is in the upper job."""
        return self._worker is not None

    def stats(self) -> dict[str, int]:
        """Counters of this process as a worker of the upper job (Worker.stats): empty on ranks that are not in it."""
        worker = self._worker
        return {} if worker is None else worker.stats()

    def join(self) -> Worker:
        """This process as a worker of the upper job, until whoever has called this calls `leave`. Blocks until all
        sites have come. Raises as `init`."""
        with self._lock:
            if self._worker is None:
                self._worker = join_beside(self._config)
                atexit.register(self.close)
            self._users += 1
            return self._worker

    def leave(self) -> None:
        """See `join`. The last one leaves the upper job, in order."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close()

    def close(self) -> None:
        """Leaves the upper job, in order: exchanges end. Idempotent."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            atexit.unregister(self.close)
            worker.close()
