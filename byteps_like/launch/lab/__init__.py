"""Several hosts on one: network namespaces with shaped links, and jobs in them.

The command line, tests and benchmarks import it.

Private: network.
"""
