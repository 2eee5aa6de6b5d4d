"""scikit-learn's digits, of which some examples train a small network."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def data() -> list[torch.Tensor]:
    """Training images (64 float32 from 0 to 1), test images, training labels, test labels."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    split = train_test_split(range(len(images)), test_size=0.2, random_state=0, stratify=digits.target)
    return [part[rows] for part in (images, torch.tensor(digits.target)) for rows in split]
