"""However `byteps-like run` ends, no process and no file of the job is left."""

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest
from launcher import wait_until, worker

GRANDCHILDREN = """
import subprocess, time
if RANK == 0:
    subprocess.Popen(["sleep", "300"])
    subprocess.Popen(["setsid", "sleep", "301"])
    subprocess.Popen(["sh", "-c", "setsid sh -c 'trap \\"\\" TERM INT HUP; sleep 302; true' & "])
open(os.path.dirname(os.environ["BYTEPS_LIKE_SECRET_FILE"]) + f"/started{RANK}", "w")
time.sleep(300)
"""


def started(launcher, ranks):
    directories = launcher.files()
    return bool(directories) and all((directories[0] / f"started{rank}").exists() for rank in range(ranks))


def shared():
    """What we may have left there: others come and go meanwhile."""
    return set(Path("/dev/shm").glob("*byteps*"))


def start_with_grandchildren(launcher):
    before = shared()
    process = launcher.start("-n 2 -s 0", *worker(GRANDCHILDREN))
    wait_until(lambda: started(launcher, 2))
    wait_until(lambda: len(launcher.left()) >= 7)  # scheduler, 2 workers, 3 sleeps, 1 shell
    return process, before


def nothing_left(launcher, before):
    return launcher.left() == [] and launcher.files() == [] and shared() <= before


def test_kill_9_of_the_launcher(launcher):
    process, before = start_with_grandchildren(launcher)
    process.kill()
    wait_until(lambda: nothing_left(launcher, before))


def test_kill_9_of_the_launcher_s_process_group(launcher):
    process, before = start_with_grandchildren(launcher)
    os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: nothing_left(launcher, before))


def test_watchdog_killed_first_is_made_up_for(launcher):
    process, before = start_with_grandchildren(launcher)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    watchdog = [pid for pid in children if "sweep.py" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(watchdog[0]), signal.SIGKILL)
    process.terminate()
    assert launcher.finish(process).code == 143
    assert nothing_left(launcher, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_job_in_order(launcher, number, code):
    process, before = start_with_grandchildren(launcher)
    process.send_signal(number)
    result = launcher.finish(process)
    assert result.code == code, result
    assert f"ended by signal {number.value}" in result.err.splitlines()[-1]
    assert nothing_left(launcher, before)


def test_ctrl_c_lets_workers_finish_and_a_second_one_does_not(launcher):
    script = """
import signal, time
def finish(*_):
    print("saved", flush=True)
    time.sleep(0 if RANK else 60)
    raise SystemExit(0)
signal.signal(signal.SIGINT, finish)
open(os.path.dirname(os.environ["BYTEPS_LIKE_SECRET_FILE"]) + f"/started{RANK}", "w")
time.sleep(300)
"""
    process = launcher.start("-n 2 -s 0 -q --grace 30", *worker(script))
    wait_until(lambda: started(launcher, 2))
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().endswith(b"saved\n")
    assert process.stdout.readline().endswith(b"saved\n")
    process.send_signal(signal.SIGINT)
    result = launcher.finish(process)
    assert result.code == 130, result
    assert result.seconds < 15  # not the grace
    assert launcher.left() == []
    assert launcher.files() == []


def test_what_a_worker_leaves_in_the_background_ends_with_the_job(launcher):
    result = launcher.run("-n 1 -s 0 -q", "sh", "-c", "setsid sleep 300 & echo done")
    assert result.code == 0, result
    assert launcher.left() == []
    assert launcher.files() == []


def test_reader_that_goes_away_ends_the_job(launcher):
    process = launcher.start("-n 1 -s 0", "sh", "-c", "while true; do echo line; done")
    assert process.stdout.readline().endswith(b"line\n")
    process.stdout.close()
    assert process.wait(10) == 128 + signal.SIGPIPE
    assert launcher.left() == []


def test_who_only_knows_the_secret_of_a_job_does_not_end_with_it(launcher):
    process, before = start_with_grandchildren(launcher)
    knows = os.environ | {"BYTEPS_LIKE_SECRET_FILE": str(launcher.files()[0] / "secret")}
    onlooker = subprocess.Popen(["sleep", "300"], env=knows)
    try:
        process.kill()
        wait_until(lambda: nothing_left(launcher, before))
        assert onlooker.poll() is None
    finally:
        onlooker.kill()
        onlooker.wait()


def test_processes_of_others_in_the_same_session_are_spared(launcher):
    """A sweep takes what carries the job's mark and what descends from it, not what merely shares its session."""
    from byteps_like.launch.ending import sweep

    directory = launcher.tmp / "job"
    directory.mkdir()
    name, _, value = sweep.marker_of(directory).partition("=")
    shell = "sleep 300 & BYTE=1 sleep 300 & wait"
    ours = subprocess.Popen(["sh", "-c", shell], env=os.environ | {name: value}, start_new_session=True)
    bystander = subprocess.Popen(["sh", "-c", f"{name}={value} sleep 300 & wait"], start_new_session=True)
    try:
        wait_until(lambda: len(sweep.members(directory)) == 4)
        killed = sweep.sweep(directory)
        assert len(killed) == 4
        assert ours.wait(20) == -signal.SIGKILL
        assert bystander.wait(20) == 0  # its marked child was killed, it was not
    finally:
        for process in (ours, bystander):
            process.kill()
            process.wait()
    assert not directory.exists()


def test_what_a_launcher_and_its_watchdog_killed_together_left_is_removed_by_the_next(launcher):
    uid = os.getuid()
    stale, young, held, foreign = (
        launcher.tmp / f"byteps-like-{name}" for name in (f"{uid}-1", f"{uid}-2", f"{uid}-3", "x")
    )
    for path in (stale, young, held, foreign):
        path.mkdir()
        (path / "secret").write_text("s")
        if path is not young:
            os.utime(path, (1, 1))
    with (held / "secret").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert launcher.run("-n 1 -s 0 -q", "true").code == 0
    assert launcher.files() == sorted([young, held, foreign])
