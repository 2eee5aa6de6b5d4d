"""Who waits for whom when ranks are slow, under every consistency: `python -m bench.consistency` measures all.

Figures are ratios between ways of training that take turns in one job. Beside each stands what a simulation predicts,
which runs the policies themselves, under the same delays, without processes and without a machine of two cores.
"""
