"""Starting jobs and laboratories of hosts on one machine.

Private: display, environment, job, jobdir, lines, obituary, replacing.
"""
