"""What interrupts a training function though nothing has failed."""

from __future__ import annotations


class HostsUpdatedInterrupt(RuntimeError):
    """Others wait to join, or have died in steps that went on without them.

    Raised on all ranks by the same `commit()` or `check_host_updates()`, and caught by `run`.

    With `skip_sync` the state needs no synchronization before the function goes on.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class DrainedExit(SystemExit):
    """This worker has left its job between two steps, as it was asked to. The others go on.

    Raised by `run`. Where nobody catches it the process ends with exit code 0, or one by which `byteps-like run` knows
    what has happened.
    """
