"""What a distributed optimizer is: the twin of the user's optimizer, its methods, its options, its state.

In come optimizers and parameter names; out go optimizers of the same class whose step() is distributed. Rooms of its
kinds (crossing, sharded, factors) and the factory import it; it imports adapt and what is below.
"""
