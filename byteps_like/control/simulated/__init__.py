"""Control planes of whole jobs on one thread, with a clock, a network and a disk of their own, in an order that a seed
decides: the scheduler's service, its journal, and the members' sessions are those of real jobs.

In come seeds (running), out go what was broken, and a trace. `seeds` runs many, of this and of other simulations. See
docs/explanation/simulation.md.

Private: defects, disk, job, loop, member, network, operator, plan, ruling, shrinking.
"""
