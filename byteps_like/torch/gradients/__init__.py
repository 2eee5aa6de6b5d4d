"""Gradients on their way: buckets of them, when they are sent, what they are encoded by, when they have landed.

In come gradients that backward has made; out go averaged ones. The room reduction imports it; it imports what is below.

Private: memory, sent.
"""
