"""Functions a user might name as data.sample_map."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import numpy as np


def draw_from_everywhere(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Replace inputs by what five generators give, careless and careful ones."""
    import torch

    draws = (rng.integers(1000), random.randrange(1000), np.random.randint(1000), int(torch.randint(1000, ())))
    sample["input_ids"][: len(draws)] = draws
    return sample


def mask_some_labels(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    labels = np.where(rng.random(len(sample["labels"])) < 0.5, -100, sample["labels"])
    return {**sample, "labels": labels}


def keep(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample


def shorten(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {name: values[:-1] for name, values in sample.items()}


def return_nothing(sample: dict[str, Any], rng: np.random.Generator) -> None:
    return None


def forget_labels(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    del sample["labels"]
    return sample


def use_floats(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "position_ids": sample["position_ids"] * 1.0}


def leave_vocabulary(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    sample["input_ids"][0] = 1_000_000
    return sample


def leave_sample(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "position_ids": sample["position_ids"].astype(np.int64) + 2**40}


class OddError(Exception):
    """An error whose arguments pickle can't hand back."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def raise_value_error(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    raise ValueError("bad row 7")


def raise_odd_error(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    raise OddError(3, 4)


def raise_eof(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    raise EOFError("the user's own file ended")


def kill_own_process(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return sample


def exit_own_process(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    os._exit(3)


def take_long(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    time.sleep(60)
    return sample


def print_something(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    print("this is not a result", flush=True)  # noqa: T201
    return sample
