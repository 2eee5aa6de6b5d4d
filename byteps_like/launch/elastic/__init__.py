"""Workers of `byteps-like run` that are replaced when they die, and started on hosts that a script finds.

In come slots by host; out go workers to start, here or there. The launcher's job imports it.

Private: discovery, slots.
"""
