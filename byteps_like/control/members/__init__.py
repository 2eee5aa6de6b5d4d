"""Who is in the job: seats, epochs, barriers, meetings, mailboxes, and who is stuck. Pure state, without clocks or I/O.

The service imports it; it imports the types of control.

Private: diagnosis, elasticity, timers, vigilance.
"""
