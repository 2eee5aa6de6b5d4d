"""How members are reached: addresses, cards, routes between hosts, RDMA devices.

Members import it; it imports the types of control.
"""
