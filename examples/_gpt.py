"""The model of gpt.py."""

import torch
from torch import Tensor, nn

CHARACTERS = 128


class GPT(nn.Module):
    """Transformer blocks between an embedding and a linear layer, each character sees those before it."""

    def __init__(self, window: int, width: int, layers: int = 3) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(torch.zeros(window, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, codes: Tensor) -> Tensor:
        """Scores of the character that follows each of `codes`."""
        length = codes.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=codes.device)
        hidden = self.characters(codes) + self.places[:length]
        return self.head(self.blocks(hidden, mask, is_causal=True))


def sample(model: GPT, window: int, length: int) -> str:
    """Text that the model writes, one character at a time, after "def "."""
    codes = torch.tensor([list(b"\ndef ")])
    for _ in range(length):
        chances = (model(codes[:, -window:])[:, -1] / 0.8).softmax(-1)
        codes = torch.cat([codes, chances.multinomial(1)], dim=1)
    text = bytes(codes[0].tolist()).decode()
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
