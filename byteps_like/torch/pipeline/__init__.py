"""Pipelines whose stages send each other encoded activations and gradients. After Optimus-CC (ASPLOS'23).

The package itself imports it; it imports fsdp and what is below.

Private: coders, edges, stage.
"""
