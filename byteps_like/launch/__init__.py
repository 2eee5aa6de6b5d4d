"""Starting jobs and laboratories of hosts on one machine.

Private: display, environment, failure, job, jobdir, lines, stopping.
"""
