"""The network: an embedding, an LSTM and a dense layer, which says the next character at every place."""

from typing import cast

from torch import Tensor, nn


class Keyboard(nn.Module):
    def __init__(self, classes: int, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 12)
        self.lstm = nn.LSTM(12, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, characters: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.lstm(self.embedding(characters))[0]))
