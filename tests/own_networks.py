"""Networks as somebody would bring them: no chains, with weights, and with frozen or shared parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ViT(nn.Module):
    """A class token and positions as bare parameters, attention, and norms before it; 8x8 images."""

    def __init__(self, classes: int, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        x = x + self.attention(self.norm(x), self.norm(x), self.norm(x), need_weights=False)[0]
        logits: Tensor = self.head(x[:, 0])
        return logits


class Recurrent(nn.Module):
    """An LSTM over rows of an image as time steps, then a GRU; its outputs are a tuple."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.classifier = nn.Linear(5, num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.gru(self.lstm(x.squeeze(1))[0])
        return self.classifier(states[:, -1]), states


class Language(nn.Module):
    """Tokens and a mask as named inputs, an embedding that is tied to the output, and a mapping as output."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 6)
        self.mix = nn.Linear(6, 6)
        self.norm = nn.GroupNorm(2, 6)
        self.out = nn.Linear(6, classes, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("causal", torch.full((4, 4), float("-inf")))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mean = (self.embedding(input_ids) * mask.unsqueeze(2)).sum(1)
        features = self.norm(torch.tanh(self.mix(mean)))
        return {"features": features, "logits": self.out(features)}


class NextToken(nn.Module):
    """A language model of a tokenizer's vocabulary, whatever the data use; what is masked is zero."""

    def __init__(self, vocabulary: int = 50, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embedding(input_ids)
        logits: Tensor = self.out(x if attention_mask is None else x * attention_mask.unsqueeze(2))
        return logits


class Frozen(nn.Module):
    """A frozen body with a norm over the batch, and a head that is trained."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.body.requires_grad_(False)
        self.hidden = nn.Linear(144, 12)
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(self.body(x)).relu())
        return logits


class Untrainable(nn.Module):
    """A network that answers, and fails when it is trained."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.training and len(x) > 2:
            raise RuntimeError("no electricity")
        logits: Tensor = self.head(x.flatten(1))
        return logits


def tied(features: tuple[int, ...], outputs: int, *, width: int = 16) -> nn.Module:
    """A chain of which two layers share a weight."""
    first, second = nn.Linear(64, width), nn.Linear(width, width)
    third = nn.Linear(width, width)
    third.weight = second.weight
    return nn.Sequential(
        nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), third, nn.ReLU(), nn.Linear(width, outputs)
    )


def hybrid(classes: int, **settings: Any) -> nn.Module:
    """Convolutions with every kind of norm."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(144),
        nn.Linear(144, classes),
    )


def nothing() -> int:
    """No network."""
    return 3


def broken() -> nn.Module:
    """A factory that fails."""
    raise OSError("no weights here")


def vectors() -> nn.Module:
    """A network for 7 features."""
    return nn.Linear(7, 10)


def thousand() -> nn.Module:
    """A network of a thousand classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1000))


def seven() -> nn.Module:
    """Seven numbers for a sample of four."""
    return nn.Linear(4, 7)


def all_frozen() -> nn.Module:
    """A network in which nothing can be trained."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)


class Solid(nn.Module):
    """Two convolutions through volumes, whose channels come first as those of images do."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 4, 3, padding=1)
        self.second = nn.Conv3d(4, 6, 3, stride=2)
        self.head = nn.Linear(6 * 2 * 2 * 3, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        logits: Tensor = self.head(x.flatten(1))
        return logits


def small(features: tuple[int, ...], classes: int) -> nn.Module:
    """A chain of plain modules for images of 5x5, which the kernels of many clients take."""
    return nn.Sequential(nn.Conv2d(features[2], 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, classes))
