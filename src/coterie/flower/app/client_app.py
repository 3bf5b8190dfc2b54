"""A client's part: it trains on data that never leave it."""

from coterie.flower.apps import client_app

app = client_app()
