"""`from byteps_like.torch.parallel import DistributedDataParallel`: BytePS's place for it."""

from byteps_like.torch.ddp.module import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
