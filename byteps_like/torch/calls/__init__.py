"""What every operation that a user starts has in common: its handle, its reduction, steps that follow one another.

Rooms of operations import it; it imports job and compression.
"""
