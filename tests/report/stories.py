"""What methods log in a round, as it looks in real runs: `(name, of, value)` by round number."""

from collections.abc import Callable, Iterator

import numpy as np
from scipy.cluster.hierarchy import linkage

from coterie.randomness import stream

Logged = Iterator[tuple[str, str, float]]
Story = Callable[[int], Logged]


def fedtsdp(rounds: int) -> Story:
    """Clusterability rises until it fires; a tensor becomes private in the round after the first firing."""
    noise = stream(1, "fedtsdp").normal(0, 0.03, rounds + 1)

    def story(number: int) -> Logged:
        statistic = 0.52 + 0.22 * number / rounds + noise[number]
        fired = statistic > 0.65
        yield "hopkins", "", statistic
        yield "hopkins threshold", "", 0.65
        yield "fired", "", float(fired)
        firings = sum(0.52 + 0.22 * r / rounds + noise[r] > 0.65 for r in range(1, number))
        yield "shared tensors", "", float(int(8 * 0.98**firings + 1e-9))
        if fired:
            for of, scale in (("min", 0.01), ("q1", 0.05), ("median", 0.2), ("q3", 0.3), ("max", 0.4)):
                yield "js", of, scale * (1.2 - number / rounds / 2 + noise[number])
            yield "eps1", "", 0.15

    return story


def fesem(rounds: int) -> Story:
    """The E-step gains at first, the M-step always; the warm-up has no E-step."""

    def story(number: int) -> Logged:
        after = 2.0 * np.exp(-4 * number / rounds) + 0.3
        if number > 1:
            yield "objective", "before E", after * (1.2 + 0.4 / number)
            yield "objective", "after E", after * (1.2 + (0.1 / number if number < 4 else 0.4 / number))
            yield "margin", "", 0.8 + number
        yield "objective", "after M", after

    return story


def fedcps(rounds: int, clients: int) -> Story:
    """Strengths of few-shot clients (every third) rise, the others' fall; identities settle and are frozen."""
    rng = stream(1, "fedcps")
    size = np.where(np.arange(clients) % 3 == 0, 24, 60) * rng.uniform(0.7, 1.3, clients)

    def story(number: int) -> Logged:
        here = stream(1, "who", round=number).permutation(clients)[: max(clients // 2, 1)]
        for client in sorted(here):
            trend = number / rounds * (1 if client % 3 == 0 else -0.5)
            yield "lambda", str(client), float(0.1 * 60 / size[client] * np.exp(trend))
        for cluster in range(3):
            yield "tau2", str(cluster), 1e-6 * (2 + cluster - number / rounds)
        yield "identity changes", "", float(int(len(here) * np.exp(-9 * number / rounds)))
        yield "frozen", "", float(number > 0.7 * rounds)

    return story


LAYERS = ("conv1", "conv2", "fc1", "fc2", "all")


def layercfl(rounds: int, clients: int, layers: tuple[str, ...] = LAYERS) -> Story:
    """Two splits of the first leaf and of its first child, each after the norm has fallen; none of few clients."""
    first, second = max(rounds // 3, 2), max(2 * rounds // 3, 3)
    sizes = {"0": clients, "1": clients // 2, "2": clients - clients // 2}
    sizes |= {"3": sizes["1"] // 2, "4": sizes["1"] - sizes["1"] // 2}
    lives = {"0": (1, first), "1": (first, second), "2": (first, rounds + 1), "3": (second, rounds + 1)}
    lives["4"] = lives["3"]
    if clients < 4:
        lives = {"0": (1, rounds + 1)}
    parents = {"0": -1, "1": 0, "2": 0, "3": 1, "4": 1}

    def story(number: int) -> Logged:
        rng = stream(1, "layercfl", round=number)
        for place, layer in enumerate(layers):
            gap = 0.6 - 0.2 * place - 0.3 * np.exp(-number / 3) + rng.normal(0, 0.03)
            yield "gap1", layer, gap
            yield "gap2", layer, 4 * gap - 1
            if number < first:
                yield "silhouette", layer, gap + rng.normal(0, 0.05)
        if number == first:
            yield "chosen", layers[0], 1.0
        for leaf, (birth, end) in lives.items():
            if birth == number:
                yield "leaf", leaf, float(parents[leaf])
            if birth <= number < end:
                yield "leaf size", leaf, float(sizes[leaf])
                norm = np.exp(-3 * (number - birth) / max(end - birth, 1))
                yield "update norm", leaf, float(norm * (1 + 0.05 * rng.random()))
                yield "split threshold", leaf, 0.1

    return story


def dcpfl(rounds: int, clients: int, groups: int = 4) -> Story:
    """Two trials, the first accepted, the second refused; three of five layers are exchanged every third round."""
    rng = stream(1, "dcpfl")
    models = rng.normal(0, 3, (groups, 8))[np.arange(clients) % groups] + rng.normal(0, 0.7, (clients, 8))
    merges = linkage(models, "average") if clients > 1 else np.empty((0, 4))
    known, one, two = min(5, rounds), max(rounds // 2, 2), max(3 * rounds // 4, 3)

    def story(number: int) -> Logged:
        yield "loss", "", float(2 * np.exp(-4 * number / rounds) + 0.3)
        if number > known:
            yield "radius", "", float(1 + (number - rounds / 3) ** 4)
        if number in (one - 1, two - 1):
            yield "rdp end", "", 1.0
        yield "cut", "", 0.8 if number > one else 1.0
        if number in (one, two):
            yield "trial", "now", 0.9 - number / rounds / 2
            yield "trial", "finer", 0.9 - number / rounds / 2 + (-0.08 if number == one else 0.03)
            yield "accepted", "", float(number == one)
        if number == known:
            for merge, (left, right, height, _) in enumerate(merges):
                yield "merge left", str(merge), left
                yield "merge right", str(merge), right
                yield "merge height", str(merge), height
            for leaf in range(clients):
                yield "dendrogram client", str(leaf), float(leaf)
        for place, layer in enumerate(("conv1", "conv2", "fc1", "fc2", "fc3")):
            yield "period", layer, 1.0 if number <= known or place > 2 else 3.0 - place * 0.5 * (number > one)

    return story


def written_by_a_user(rounds: int) -> Story:
    """Names that no figure knows: one number, some of several parts, and some of very many."""

    def story(number: int) -> Logged:
        yield "temperature", "", 10.0 ** (-3 * number / rounds)
        for part in ("encoder", "decoder"):
            yield "drift / <norm>", part, float(np.sin(number / 3) + (part == "encoder"))
        for client in range(40):
            yield "trust", f"client {client}", float(np.cos(client) + number / rounds)
        if number == 1:
            yield "once", "", 1.0

    return story


def together(*stories: Story) -> Story:
    """Several stories in one log, as of a mixed method."""
    return lambda number: (entry for story in stories for entry in story(number))


def all_stories(rounds: int, clients: int) -> Story:
    """Everything that any figure knows, and more, in one log."""
    return together(
        fedtsdp(rounds),
        fesem(rounds),
        fedcps(rounds, clients),
        layercfl(rounds, clients),
        dcpfl(rounds, clients),
        written_by_a_user(rounds),
    )
