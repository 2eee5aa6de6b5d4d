"""Gradients of Linear weights that travel as their factors. After Poseidon (ATC'17).

The factory imports it; it imports reduction and what is below.

Private: choice, layer, link, matrix, round.
"""
