"""The methods by name. Importing `coterie.methods` fills it."""

from coterie.catalog import Catalog

METHODS = Catalog("method")
