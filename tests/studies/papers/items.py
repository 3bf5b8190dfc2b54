"""A small item of its own, for the tests that read, run or print one."""

from __future__ import annotations

ITEM = """\
paper = "A Paper"
place = "Table 1"
title = "Two methods on two splits"
says = "IFCA is above FedAvg where the clients' labels differ"
seeds = 5
measure = "accuracy"
baseline = "FedAvg"
shows = ["accuracy", "hop"]
findings.small = "Two seeds decide little"

[experiment.data]
name = "hub:somebody/images"
clients = 100

[experiment.network]
name = "cnn"

[experiment.run]
rounds = 100

[methods.FedAvg]
method.name = "fedavg"

[methods.IFCA]
method.name = "ifca"
method.clusters = 3

[methods.FedTSDP]
method.name = "fedtsdp"

[settings.IID]
data.split = "iid"

[settings."β = 0.2"]
data.split = "dirichlet(0.2)"

[published.accuracy.IID]
FedAvg = 67.35
IFCA = 70.1

[published.accuracy."β = 0.2"]
FedAvg = 60

[quantities.hop]
log = "hopkins"
at = "max"

[[claims]]
text = "IFCA is above FedAvg"
where = "section 5"
holds = "accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID']"

[[claims]]
text = "With skew FedAvg loses, and stays above one per cent"
where = "section 5.1"
holds = "accuracy['FedAvg', 'IID'] > accuracy['FedAvg', 'β = 0.2'] > 1"
finding.small = "Few rounds."

[[claims]]
text = "The statistic of IID data is lower"
where = "Figure 2"
holds = "hop['FedTSDP', 'IID'] < hop['FedTSDP', 'β = 0.2']"

[scales.medium]
stand_in = "MNIST for the images"
reduces = "20 clients instead of 100"
experiment.data.name = "mnist"
experiment.data.clients = 20

[scales.small]
stand_in = "digits for the images"
reduces = "6 clients instead of 100, 2 rounds instead of 100"
seeds = 2
keep_methods = ["FedAvg", "IFCA"]
experiment.data.name = "digits"
experiment.data.clients = 6
experiment.network.name = "mlp"
experiment.run.rounds = 2
methods.IFCA.method.clusters = 2
"""
