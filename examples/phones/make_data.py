"""Write phones.npz: 15 phones, 40 pieces of 32 characters of what their owners type, and the character after each.

Made up, from seed 0. Six people type English, five German and four Spanish, all with the letters a to z and the
space.
"""

import numpy as np

WORDS = {
    "english": (
        ["i am", "we are", "they will be", "are you", "she is", "my brother is"],
        ["at the station", "on the train", "with the children", "in the kitchen", "at work", "near the river"],
        ["this evening", "until tomorrow", "right now", "after lunch", "in an hour", "every thursday"],
    ),
    "german": (
        ["ich bin", "wir sind", "sie werden", "bist du", "er ist noch", "meine schwester ist"],
        ["am bahnhof", "mit dem zug unterwegs", "bei den kindern", "in der stadt", "auf der arbeit", "zu hause"],
        ["heute abend", "bis morgen", "gerade jetzt", "nach dem essen", "in einer stunde", "jeden donnerstag"],
    ),
    "spanish": (
        ["yo estoy", "nosotros estamos", "ellos van a estar", "estas", "ella esta", "mi hermano esta"],
        ["en la estacion", "en el tren", "con los chicos", "en la cocina", "en el trabajo", "cerca del rio"],
        ["esta tarde", "hasta manana", "ahora mismo", "despues de comer", "en una hora", "todos los jueves"],
    ),
}
LETTERS = " abcdefghijklmnopqrstuvwxyz"
PIECES, LENGTH = 40, 32

rng = np.random.default_rng(0)
texts, following, clients = [], [], []
for phone, language in enumerate(["english"] * 6 + ["german"] * 5 + ["spanish"] * 4):
    typed = ""
    while len(typed) <= PIECES * LENGTH:
        typed += " ".join(rng.choice(part) for part in WORDS[language]) + " "
    numbers = np.array([LETTERS.index(letter) for letter in typed])
    for start in range(0, PIECES * LENGTH, LENGTH):
        texts.append(numbers[start : start + LENGTH])
        following.append(numbers[start + 1 : start + LENGTH + 1])
        clients.append(f"{language} {phone:02}")
np.savez_compressed("phones.npz", tokens=np.array(texts), label=np.array(following), client=clients)
