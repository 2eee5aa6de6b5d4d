"""One rank of a site of bench/consistency/sites.py: contributes each step, and leaves what it did as JSON.

Computing is a sleep: ranks share the machine's cores. Started with its plan.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

import byteps_like.torch as bps
from bench.consistency.sites import EVERY, MERGE, SitePlan, SiteRun
from byteps_like.wire.note import NOTE_BYTES


def main() -> None:
    plan = SitePlan(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    bps.init()
    upper = bps.Upper(
        plan.upper, sites=plan.sites, site=plan.site, every=EVERY, merge=MERGE, job="upper",
        secret_file=plan.secret_file,
    )  # fmt: skip
    values = np.zeros(plan.nbytes // 4, np.float32)
    store = bps.Store("w", {"w": values}, upper=upper)
    gradient = np.ones_like(values)
    bps.barrier()
    sent = upper.stats().get("payload_sent", 0)
    began, landed = time.perf_counter(), []
    for _ in range(plan.steps):
        time.sleep(plan.compute)
        store.push_pull("w", gradient, values).wait()
        landed.append(time.perf_counter() - began)
    store.exchange_above()
    sent = upper.stats().get("payload_sent", 0) - sent
    store.finish()
    run = SiteRun(landed, sent / (plan.steps * (values.nbytes + NOTE_BYTES)))
    Path(f"{plan.found}{bps.rank()}").write_text(json.dumps(asdict(run)))
    bps.shutdown()


if __name__ == "__main__":
    main()
