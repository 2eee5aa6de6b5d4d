"""Which algorithm a call runs: tables, measurements, what the user forces.

Planning imports it; it imports schedules and the library of algorithms.

Private: forced.
"""
