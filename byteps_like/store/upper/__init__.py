"""A store below another: what sites, which are jobs of their own, have in common by the servers of an upper group.

`upper.Upper` says which group that is. `above.Above` is what a Store has of it: on all ranks a place on the servers
where the upper group's values are put beside its own, on rank 0 a relay between both.

Private: relay.
"""
