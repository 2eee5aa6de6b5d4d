"""Schedules as data: what one is, how it is built, checked and counted.

Algorithms and planning import it; it imports dtypes only.
"""
