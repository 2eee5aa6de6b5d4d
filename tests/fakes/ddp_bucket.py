"""A bucket of gradients, as torch's DDP hands it to a communication hook."""

from __future__ import annotations

import numpy as np
import torch


class Bucket:
    """What torch hands to a hook."""

    def __init__(self, index, parameters, gradients):
        self._index, self._parameters = index, parameters
        self._buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
        ends = np.cumsum([0, *(parameter.numel() for parameter in parameters)])
        self._gradients = [
            self._buffer[ends[number] : ends[number + 1]].view(parameter.shape)
            for number, parameter in enumerate(parameters)
        ]

    def index(self):
        return self._index

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        return self._gradients
