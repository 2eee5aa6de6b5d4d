"""A store below another: what sites, which are jobs of their own, have in common by the servers of an upper group.

`upper.Upper` says which group that is. `above.Above` is what a Store or a KV has of it: on rank 0 a relay, which
exchanges `tensors` or `rows`. For that all ranks have places on the servers beside their own values.

Private: progress, relay.
"""
