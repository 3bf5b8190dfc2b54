"""Clustered and personalised federated learning."""
