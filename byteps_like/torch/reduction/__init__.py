"""Who reduces a model's gradients: the parameters that take part, rounds, codecs and what they remember, gradients that
travel by rows.

In come parameters with hooks; out go averaged gradients. Rooms of optimizers and DDP import it; it imports gradients,
sparse and what is below.

Private: rounds, sparse, sparse_landing, sparse_router.
"""
