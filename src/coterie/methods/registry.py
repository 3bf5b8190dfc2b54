"""The methods by name. `coterie.methods.METHODS` is this catalogue with all methods in it."""

from coterie.catalogue import Catalog
from coterie.catalogue import Grid as Grid

METHODS = Catalog(
    "method",
    {
        "hypcluster": "ifca with weights = 'samples'",
        "fedcluster": "cfl",
        "fmtl": "cfl",
        "feddist+ws": "feddist with weights = 'samples'",
        "reptile": "feddist",
        "nofed": "local-only",
        "standalone": "local-only",
    },
    gone={
        "mixed": "for groups with private or common layers take grouped-layers; to combine other parts, write a "
        "method of your own (docs/methods.md, and `coterie list parts`)",
    },
    group="coterie.methods",
    must_be="coterie.methods.method:Method",
)
"""Methods by name: classes with keyword settings, derived from `Method`."""
