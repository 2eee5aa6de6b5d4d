"""FSDP2 with compressed all-gathers and reduce-scatters. After ZeRO++ (ICLR'24).

The package itself and pipelines import it; it imports c10d and compression.

Private: collectives, secondary.
"""
