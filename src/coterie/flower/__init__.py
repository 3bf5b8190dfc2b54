"""Clients on other machines, reached through Flower (extra coterie[flower])."""
