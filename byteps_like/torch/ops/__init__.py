"""Operations on tensors that a user starts: push_pull, broadcast, gathers, objects, grouped ones, their gradients.

In come tensors and BytePS's and Horovod's arguments; out go handles and results. The package itself and the rooms of
optimizers and DDP import it; it imports calls, sparse and what is below.

Private: gather_codec, gather_ops.
"""
