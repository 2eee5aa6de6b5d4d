"""The command line.

Private: bench, chaos, chaos_simulated, config, doctor, draining, lab, plan, plan_codecs, plan_shift, run, schedule,
scheduler, server, status, timeline, tune, version, worker.
"""
