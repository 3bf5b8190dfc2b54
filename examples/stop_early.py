"""The loop in your own hands: stop once nobody has moved for five rounds.

python examples/stop_early.py
"""

import coterie

experiment = coterie.Experiment(
    method={"name": "ifca", "clusters": 4, "init": "kmeans"},
    data={"name": "digits", "split": "rotated(4)"},
    training={"epochs": 2, "batch_size": 10},
    run={"rounds": 50},
)

still = 0
for round in coterie.rounds(experiment):
    still = 0 if round.metrics["moved"] else still + 1
    print(f"round {round.number}: accuracy {round.metrics['macro_accuracy']:.1%}, groups {round.group_sizes}")
    if still == 5:
        break
