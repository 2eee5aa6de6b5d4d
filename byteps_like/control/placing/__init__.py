"""Which server keeps which partition: declarations, placement, weights and what hosts are worth. Pure state.

The service and planners import it; it imports members and the types of control.

Private: staying.
"""
