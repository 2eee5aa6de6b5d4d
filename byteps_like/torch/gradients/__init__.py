"""A model's gradients on their way: buffers of them, when they are sent, what they are encoded by, when they have
landed.

In come parameters with hooks; out go averaged gradients. Rooms of optimizers import it; it imports sparse and what is
below.
"""
