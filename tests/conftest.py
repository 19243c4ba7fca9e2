"""What all tests share. The environment variables are set one folder up, in conftest.py."""

import sys

import pytest

try:
    import matplotlib
except ImportError:
    pass
else:
    matplotlib.use("Agg")  # not by MPLBACKEND: the kernels that a test starts would inherit it


@pytest.fixture(autouse=True)
def one_torch_thread():
    """One thread a test, whatever the test before it set; torch is not imported for it."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def global_streams_untouched():
    """Nothing between set-up and tear-down may draw from, or seed, the global streams of numpy, torch and random."""
    import random

    import numpy as np
    import torch

    def state():
        _, keys, position, *_ = np.random.get_state()
        return random.getstate(), keys.tolist(), position, torch.get_rng_state().tolist()

    before = state()
    yield
    assert state() == before
