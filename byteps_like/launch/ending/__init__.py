"""How a job of `byteps-like run` ends: when and why, whose failure it was, by which exit code, and what is cleaned up.

In come processes that have ended; out go what to stop next, and what to say. The launcher's job imports it.
"""
