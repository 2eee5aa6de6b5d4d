"""Jobs of real processes, of which one after the other is killed: what is done to them, what is seen, and the report.

In come options; out go a report and an exit code. The command line imports it.

Private: growth, ledger.
"""
