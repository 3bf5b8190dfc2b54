"""From how many clients on work is done in another way than for few."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coterie.catalogue import Changes, Section


class Scale(Section):
    """What many clients cost: above these numbers answers are approximate, or lie on disk.

    A method that will approximate says so before the first round (`Method.warnings`).
    """

    title = "scale"
    sketch_above: Annotated[
        int,
        Field(
            ge=1, description="clients in one comparison above which models are compared by sketches of 512 numbers"
        ),
    ] = 5_000
    hierarchy_above: Annotated[
        int,
        Field(ge=2, description="clients above which groups are found among micro-clusters instead of clients"),
    ] = 20_000
    js: Annotated[
        Literal["exact", "low-rank"],
        Field(description="Jensen-Shannon divergences: of all pairs, or by an explicit map of features"),
    ] = "exact"
    states_mb: Annotated[
        int,
        Field(ge=0, description="megabytes of client states beyond which they lie in a mapped file"),
        Changes("nothing"),
    ] = 4_000
    data_mb: Annotated[
        int,
        Field(ge=0, description="megabytes of samples beyond which they lie in a mapped file"),
        Changes("nothing"),
    ] = 4_000


def too_many(method: str, compared: int, scale: Scale) -> list[str]:
    """Return one sentence why a method cannot hold a matrix between so many clients; nothing where it can.

    Args:
        method: its name.
        compared: clients that it compares pair by pair; 0 for none.
        scale: of the experiment.
    """
    if compared <= scale.hierarchy_above:
        return []
    return [
        f"method.name = {method!r} is not possible with {compared:,} clients: it compares them pair by pair, and "
        f"each matrix takes {compared**2 * 8 / 1e9:,.1f} GB; it must be a method like cfl, fesem or ifca, or "
        f"scale.hierarchy_above = {scale.hierarchy_above} must be at least {compared} if there is memory for that"
    ]
