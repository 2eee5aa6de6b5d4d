"""Memory of this host that stores work in: of operations in flight, and what all its ranks have mapped.

Private: mapped.
"""
