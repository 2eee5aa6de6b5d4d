"""`byteps-like run`: output, failures and exit codes. The workers are small scripts that import nothing of ours."""

import os
import subprocess
import sys

import pytest


def lines_of(text, part):
    return [line.partition("│ ")[2] for line in text.splitlines() if line.startswith(part)]


def test_output_keeps_streams_ranks_and_whole_lines(launcher):
    result = launcher.python(
        "-n 3 -s 0 -q",
        """
import sys
for n in range(200):
    print(f"{RANK}-{n}-" + "x" * 500)
print("y" * 200_000)
sys.stderr.write(f"complaint {RANK}\\n")
for percent in range(0, 101, 10):
    sys.stderr.write(f"\\r{percent}%")
sys.stderr.flush()
sys.stdout.write("no end")
""",
    )
    assert result.code == 0, result
    for rank in range(3):
        expected = [f"{rank}-{n}-" + "x" * 500 for n in range(200)] + ["y" * 200_000, "no end"]
        assert lines_of(result.out, f"worker {rank}") == expected
        assert lines_of(result.err, f"worker {rank}") == [f"complaint {rank}", "100%"]


def test_workers_find_their_place_and_the_secret_is_a_private_file(launcher):
    result = launcher.python(
        "-n 2 -s 0 --no-prefix --env COLOUR=blue --job trial",
        """
import stat, subprocess
e = os.environ
names = ("JOB", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NUM_SERVERS", "ROLE")
path = e["BYTEPS_LIKE_SECRET_FILE"]
modes = [oct(stat.S_IMODE(os.stat(p).st_mode)) for p in (path, os.path.dirname(path))]
secret = open(path).read().strip().encode()
shown = subprocess.run("cat /proc/[0-9]*/cmdline 2>/dev/null", shell=True, capture_output=True).stdout
told = secret in shown
host, port = e["BYTEPS_LIKE_SCHEDULER"].rsplit(":", 1)
print(*[e["BYTEPS_LIKE_" + n] for n in names], e["COLOUR"], *modes, len(secret) >= 32, told, int(port) > 0,
      int(e["OMP_NUM_THREADS"]) >= 1)
""",
    )
    rest = "blue 0o600 0o700 True False True True"
    assert sorted(result.out.splitlines()) == [f"trial {r} 2 {r} 2 0 worker {rest}" for r in range(2)], result
    assert "OMP_NUM_THREADS=" in result.err
    assert launcher.files() == []


def test_first_failure_is_shown_last_and_gives_the_exit_code(launcher):
    result = launcher.python(
        "-n 4 -s 0",
        """
import time, sys
class PeerLostError(RuntimeError): pass
if RANK == 2:
    try:
        raise ValueError("the cause")
    except ValueError:
        import traceback; traceback.print_exc()
        time.sleep(0.4)  # slow to end: the others are gone before it
        sys.exit(7)
if RANK == 3:
    time.sleep(60)
time.sleep(0.1)
raise PeerLostError("worker 2 died")
""",
    )
    assert result.code == 7, result
    assert result.seconds < 15  # not the minute of worker 3
    report = result.err[result.err.index("worker 2 failed first") :].splitlines()
    assert report[0].startswith("worker 2 failed first: exit code 7")
    assert report[1].strip() == "Traceback (most recent call last):"
    assert "  ValueError: the cause" in report
    ended = [line.partition(": ")[2][:8] for line in report if line.startswith("after it")]
    assert sorted(ended) == ["worker 0", "worker 1"]  # in the order in which they ended, which is chance
    assert not [line for line in report if line.startswith("worker 3")]


def test_a_scheduler_that_ends_before_it_listens_is_named(launcher):
    scheduler = "import os; os.write({told}, b'127.0.0.1:1\\n'); os.close({told}); os._exit(6)"
    program = f"""
import sys
from byteps_like.launch import job, run
from byteps_like.launch.options import RunOptions
job.scheduler_command = lambda told, deaths: [sys.executable, "-I", "-S", "-c", {scheduler!r}.format(told=told)]
sys.exit(run.run_job(RunOptions(["sleep", "60"], workers=2, servers=0, settle=0.1)))
"""
    environment = {**os.environ, "TMPDIR": str(launcher.tmp)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 6, done.stderr
    assert "scheduler failed first: exit code 6" in done.stderr
    assert launcher.left() == []


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("os.kill(os.getpid(), 9)", 137, "worker 1 failed first: killed by signal 9 (SIGKILL)"),
        ("print('last words'); os._exit(5)", 5, "worker 1 failed first: exit code 5"),
    ],
)
def test_exit_code_is_that_of_the_first_failure(launcher, script, code, said):
    result = launcher.python("-n 2 -s 0 -q", f"import time\nif RANK == 1:\n    {script}\ntime.sleep(60)")
    assert result.code == code, result
    assert said in result.err.splitlines()[-2]
    assert launcher.left() == []


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(launcher):
    script = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if RANK == 1:
    time.sleep(0.3)
    os._exit(3)
time.sleep(60)
"""
    result = launcher.python("-n 2 -s 0 -q --grace 0.3", script)
    assert result.code == 3, result
    assert result.seconds < 15
    assert launcher.left() == []


def test_timeout_ends_the_job_with_its_own_exit_code(launcher):
    result = launcher.python("-n 2 -s 0 -q --timeout 1", "import time; time.sleep(60)")
    assert result.code == 124, result
    assert "--timeout" in result.err.splitlines()[-1]


def test_what_cannot_be_started_is_said(launcher):
    result = launcher.run("-n 2", "no-such-program")
    assert (result.code, result.err) == (127, "byteps-like: there is no program 'no-such-program'\n")
    result = launcher.run("-n 1 --env =x", "true")
    assert result.code == 2
    assert "NAME=VALUE" in result.err


def test_log_dir_has_each_process_s_output_as_written(launcher, tmp_path):
    logs = tmp_path / "logs"
    result = launcher.python(f"-n 2 -s 0 -q --log-dir {logs}", "import sys; sys.stdout.write(f'a\\r{RANK}\\n')")
    assert result.code == 0, result
    assert {path.name for path in logs.iterdir()} == {"worker-0.log", "worker-1.log", "scheduler.log"}
    assert (logs / "worker-1.log").read_bytes() == b"a\r1\n"
