"""What happened when, on all ranks and servers: recorded in parts, merged into one Perfetto trace, and reported.

records.py   the records of the native core        recorder.py  switches, collects and writes, one per process
parts.py     the file that a process writes        clock.py     every process's clock against the scheduler's
orders.py    from which step to which              merge.py     parts into one trace; perfetto.py writes it
waits.py     whom a wait was for                   analysis.py, report.py, draw.py, page.py: where a step went

Private: merge, waits.
"""
