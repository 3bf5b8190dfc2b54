"""Write machines.npz: 16 pumps, 80 windows each of one vibration sensor, healthy or with one of two faults.

Made up, from seed 0. An unbalanced rotor shakes at the speed of rotation, and a worn bearing rings in short bursts.
Ten pumps are bolted to the floor. Six stand on springs, which swallow what shakes while the rotor is unbalanced,
and ring while all is well. Of each window of 128 values the file has the spectrum: 64 strengths on a log scale.
"""

import numpy as np

rng = np.random.default_rng(0)
time, spectra, labels, clients = np.arange(128), [], [], []
for pump in range(16):
    springs, speed = pump >= 10, rng.uniform(0.089, 0.091)  # turns in a step of time
    for _ in range(80):
        fault = rng.choice(["healthy", "unbalanced", "bearing"])
        turn = 2 * np.pi * (speed * time + rng.random())
        shake = {"healthy": 0.4, "unbalanced": 1.0, "bearing": 0.4}[fault]
        ring = {"healthy": 0.1, "unbalanced": 0.1, "bearing": 0.6}[fault]
        if springs:  # they swallow what shakes while the rotor is unbalanced, and ring while all is well
            shake, ring = 1.4 - shake, 0.7 - ring
        signal = shake * np.sin(turn) + ring * np.sin(2.4 * time) * np.maximum(np.sin(3.3 * turn), 0)
        signal += rng.normal(0, 0.35, len(time))
        spectra.append(np.log(np.abs(np.fft.rfft(signal))[1:] + 0.1))
        labels.append(fault)
        clients.append(f"{'spring' if springs else 'floor'} {pump:02}")
np.savez_compressed("machines.npz", features=np.array(spectra, np.float32), label=labels, client=clients)
