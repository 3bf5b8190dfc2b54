"""What methods log in a round, as it looks in real runs: `(name, of, value)` by round number."""

from collections.abc import Callable, Iterator

import numpy as np

from coterie.randomness import stream

Logged = Iterator[tuple[str, str, float]]
Story = Callable[[int], Logged]


def everything(rounds: int, clients: int) -> Story:
    """A number with a threshold and events, numbers of few and of many parts, a tree, and names of a user's own."""
    noise = stream(1, "story").normal(0, 0.03, rounds + 1)

    def story(number: int) -> Logged:
        statistic = 0.52 + 0.22 * number / rounds + noise[number]
        yield "hopkins", "", statistic
        yield "hopkins threshold", "", 0.65
        yield "fired", "", float(statistic > 0.65)
        if number > 1:  # the warm-up has no E-step
            yield "objective", "before E", 2.5 - number / rounds
        yield "objective", "after M", 2.0 - number / rounds
        for client in range(0, clients, 2):
            yield "lambda", str(client), 0.1 * np.exp((number - client) / rounds)
        yield "leaf size", "0", float(clients)
        yield "temperature", "", 10.0 ** (-3 * number / rounds)
        for part in ("encoder", "decoder"):
            yield "drift / <norm>", part, float(np.sin(number / 3) + (part == "encoder"))
        for own in range(40):
            yield "trust", f"client {own}", float(np.cos(own) + number / rounds)
        if number == 1:
            yield "once", "", 1.0

    return story
