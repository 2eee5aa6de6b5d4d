"""When jobs that share links begin their steps, so that their traffic falls apart. After CASSINI (NSDI'24).

The command line imports it.

Private: circle, search.
"""
