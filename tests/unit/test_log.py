"""One handler, one prefix, no matter how often it is set up."""

import io
import logging

from byteps_like import log


def test_records_carry_the_member_and_come_once() -> None:
    stream = io.StringIO()
    try:
        log.set_up("worker ?", "info", stream)
        log.set_up("worker 2", "info", stream)
        log.native_record(3, "slow round")
        logging.getLogger("byteps_like.control").debug("not shown")
    finally:
        logger = logging.getLogger("byteps_like")
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(" worker 2 W slow round")
