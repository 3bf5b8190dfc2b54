"""What a run does beside its rounds, one class a file: `hook.py` says what a hook may do, `order.py` lists them."""
