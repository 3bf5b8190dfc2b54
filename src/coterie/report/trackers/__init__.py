"""Trackers: observers that tell MLflow, TensorBoard, Weights & Biases or a CSV file how a run gets on.

They are offered as entry points, as those of any package are, and each imports its library when a run begins.
"""
