"""The pure half of tuning: counting rounds, proposing settings, the log and the saved form."""

from __future__ import annotations

import math

import pytest

from byteps_like.config_values import SMALLEST_PARTITION
from byteps_like.errors import ConfigError
from byteps_like.tuner.log import Log
from byteps_like.tuner.rounds import TrialPace, TrialRounds
from byteps_like.tuner.search import ParzenSearch, Trial
from byteps_like.tuner.setting import Setting, Space, load, pack, save, unpack

BOTH = Space(("server", "allreduce"))


def test_rounds_counts_after_what_is_discarded():
    rounds = TrialRounds(TrialPace(trials=2, discard=2, measure=3))
    assert rounds.note(9.0), "the first decision is due after one round"
    rounds.begin()
    assert [rounds.note(float(second)) for second in range(5)] == [False] * 4 + [True]
    assert rounds.seconds == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "setting",
    [Setting("server", 1 << 20, 2 << 20, 65536), Setting("allreduce", 4 << 20, segment_bytes=0, algorithm="ring")],
)
def test_a_setting_survives_packing_and_saving(setting, tmp_path):
    assert unpack(pack(setting, BOTH), BOTH) == setting
    save(tmp_path / "deep" / "tuned.json", setting)
    assert load(tmp_path / "deep" / "tuned.json") == setting


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"setting": {"route": 3}}', '{"setting": {"speed": 1}}', '{"setting": {"partition_bytes": 0}}'],
)
def test_a_file_that_no_tuner_saved_is_refused_by_name(text, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.json"):
        load(path)


def test_the_smallest_partition_is_the_scheduler_s(tmp_path):
    path = tmp_path / "tuned.json"
    save(path, Setting(partition_bytes=SMALLEST_PARTITION))
    assert load(path).partition_bytes == SMALLEST_PARTITION
    save(path, Setting(partition_bytes=SMALLEST_PARTITION - 1))
    with pytest.raises(ConfigError, match="partition_bytes=63 can't be"):
        load(path)


def landscape(setting: Setting) -> float:
    """A valley in partition and credit; allreduce is a little worse at its best."""
    away = abs(math.log2(setting.partition_bytes / (1 << 20)))
    if setting.route == "allreduce":
        return 1.1 + 0.08 * away + 0.05 * (setting.algorithm == "halving_doubling")
    short = max(0.0, math.log2(2 * setting.partition_bytes / setting.credit_bytes))
    return 1.0 + 0.08 * away + 0.2 * short + 0.02 * max(0.0, math.log2(setting.credit_bytes / (4 << 20)))


def best_of_grid() -> float:
    settings = [
        Setting("server", partition, credit, segment)
        for partition in BOTH.partitions for credit in BOTH.credits for segment in BOTH.segments
    ]  # fmt: skip
    return min(landscape(setting) for setting in settings)


def search(seed: int) -> Log:
    tried, log = ParzenSearch(BOTH, Setting("server"), seed), Log()
    for _ in range(20):
        setting = tried.ask()
        log.trials.append(Trial(setting, (landscape(setting), 0.0, 99.0)))
        tried.tell(log.trials[-1])
    return log


def test_twenty_trials_come_within_five_percent_of_the_best_grid_point():
    logs = [search(seed) for seed in range(4)]
    for log in logs:
        assert log.trials[0].setting.route == "server"
        assert log.trials[0].setting.partition_bytes == 4 << 20, "what is in force is tried first"
        assert log.best.median < 1.05 * best_of_grid()
    assert [trial.setting for trial in search(1).trials] == [trial.setting for trial in logs[1].trials]


def test_the_log_is_a_table_and_a_plot(tmp_path):
    log = Log([Trial(Setting("server"), (0.2,)), Trial(Setting("allreduce", algorithm="ring"), (0.1, 0.3, 0.15))])
    assert log.best is log.trials[1]
    assert "4 MiB" in log.text() and "ring" in log.text() and "0.1500" in log.text() and "1.333" in log.text()
    log.save(tmp_path / "tuned.json", log.best.setting)
    assert load(tmp_path / "tuned.json") == log.best.setting
    assert (tmp_path / "tuned.png").stat().st_size > 1000
