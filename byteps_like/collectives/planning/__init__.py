"""From a call and its selected algorithm to the program that the core runs; drawings and timelines of it.

Groups import it; it imports schedules, selection and the library of algorithms.

Private: shared_plan.
"""
