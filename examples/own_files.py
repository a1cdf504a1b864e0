"""Clients from files: a folder with one table per clinic."""

from pathlib import Path

from torch import nn

import kinfolk

clinics, report = kinfolk.load_own(Path(__file__).with_name("clinics"), label="ill")
print(clinics.clients, report.balance)

result = kinfolk.run(nn.Linear(3, 2), clinics, "fedavg_tuned", rounds=5)
for model, scores in result.summary.items():
    print(model, {name: round(score["macro"], 3) for name, score in scores.items()})
