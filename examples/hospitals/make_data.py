"""Write hospitals.csv: 16 hospitals, 80 to 140 stays each, and whether the patient was back within 30 days.

Made up, from seed 0. In the ten general hospitals old patients with many earlier stays come back. The six
specialised ones send exactly these to a home with nursing; it is the young ones, sent home early, who come back.
"""

import numpy as np
import polars as pl

rng = np.random.default_rng(0)
general = ["Ash", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Larch", "Maple", "Oak", "Pine"]
tables = []
for name in [*general, "Amber", "Coral", "Garnet", "Jade", "Opal", "Pearl"]:
    count = int(rng.integers(80, 141))
    age, stays, days = rng.normal(64, 14, count), rng.poisson(1.5, count), 1 + rng.poisson(4, count)
    creatinine = rng.normal(90, 20, count)
    ward, arrival = (
        rng.choice(["surgery", "medicine", "geriatrics"], count),
        rng.choice(["planned", "urgent"], count),
    )
    frailty, sign = (age - 64) / 14 + 0.9 * (stays - 1.5), 1 if name in general else -1
    risk = 1.6 * sign * frailty + 0.8 * (creatinine - 90) / 20 + 0.8 * (arrival == "urgent") - 0.4
    back = rng.random(count) < 1 / (1 + np.exp(-1.5 * risk))
    tables.append(
        pl.DataFrame(
            {
                "hospital": [name] * count,
                "age": age.round().astype(int),
                "earlier_stays": stays,
                "days": days,
                # the laboratory's value is missing for one patient in eight
                "creatinine": [None if rng.random() < 0.125 else round(float(value)) for value in creatinine],
                "ward": ward,
                "arrival": arrival,
                "readmitted": back.astype(int),
            }
        )
    )
pl.concat(tables).write_csv("hospitals.csv")
