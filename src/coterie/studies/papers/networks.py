"""Networks that only a published table asks for; an item names them by their path."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class CharacterLSTM(nn.Module):
    """The next character at every place of a text, by layers of LSTM (FedEM, after LEAF)."""

    def __init__(self, classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits `[B, T, classes]` of the characters that follow `[B, T]`."""
        return cast(Tensor, self.head(self.lstm(self.embedding(characters))[0]))
