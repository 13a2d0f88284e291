"""Small data sets in the formats that programs of Theano's time read."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_atis", "write_imdb", "write_mnist", "write_nottingham"]


def write_mnist(file: Path, train: int, test: int) -> None:
    """Write handwritten digits in MNIST's size and file format; the two test sets are equal."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    larger = np.kron(digits.images[order] / 16, np.ones((3, 3)))
    images = np.pad(larger, ((0, 0), (2, 2), (2, 2))).astype("float32").reshape(-1, 28 * 28)
    labels = digits.target[order]
    sets = [(images[:train], labels[:train]), *[(images[-test:], labels[-test:])] * 2]
    with gzip.open(file, "wb", compresslevel=1) as stream:
        pickle.dump(tuple(sets), stream)


def write_imdb(file: Path, train: int, test: int) -> None:
    """Write reviews of a few words, the good ones of other words than the bad ones."""
    random = np.random.RandomState(1)

    def reviews(number: int) -> tuple[list[Any], list[int]]:
        labels = [i % 2 for i in range(number)]
        words = [(2 + 50 * label + random.randint(50, size=8)).tolist() for label in labels]
        return words, labels

    with file.open("wb") as stream:
        pickle.dump(reviews(train), stream)
        pickle.dump(reviews(test), stream)


def write_atis(file: Path, train: int, test: int) -> None:
    """Write sentences whose words determine their labels."""
    random = np.random.RandomState(2)
    words = {f"word{i}": i for i in range(12)}
    labels = {"B-city": 0, "O": 1, "B-day": 2}

    def sentences(number: int) -> tuple[list[Any], list[Any], list[Any]]:
        found = [random.randint(12, size=6).astype("int32") for _ in range(number)]
        return found, [x * 0 for x in found], [x % 3 for x in found]

    with gzip.open(file, "wb") as stream:
        parts = (sentences(train), sentences(test), sentences(test))
        pickle.dump((*parts, {"words2idx": words, "labels2idx": labels}), stream)


def write_nottingham(folder: Path, songs: int) -> None:
    """Write songs as text, with a module ``midi`` beside the programs that reads them."""
    tunes = folder / "data" / "Nottingham" / "train"
    tunes.mkdir(parents=True)
    for i in range(songs):
        roll = np.zeros((40, 88), dtype=int)
        roll[np.arange(40), 30 + (np.arange(40) + i) % 12] = 1
        np.savetxt(tunes / f"{i}.mid", roll, fmt="%d")
    package = folder / "code" / "midi"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "utils.py").write_text(
        "import numpy\n"
        "from types import SimpleNamespace\n\n\n"
        "def midiread(file, r, dt):\n"
        "    return SimpleNamespace(piano_roll=numpy.loadtxt(file))\n\n\n"
        "def midiwrite(file, piano_roll, r, dt):\n"
        "    numpy.savetxt(file, piano_roll)\n"
    )
