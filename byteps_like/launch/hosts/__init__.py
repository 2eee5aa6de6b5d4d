"""What a host has, for `byteps-like doctor`: processors, network, GPUs, RDMA, rates.

The command line and planners import it.
"""
