"""What all tests share. The environment variables are set one folder up, in conftest.py."""

import os
import random
import sys
import zlib

import numpy as np
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


@pytest.fixture(autouse=True)
def the_same_inputs_in_each_run(request, monkeypatch):
    """Seeds by the test's name whatever asks for fresh random numbers, as all checkers do.

    So chance fails no run. With TRINITY_MINI_THOROUGH=1 the inputs stay fresh, to find what fails seldom.
    """
    if os.environ.get("TRINITY_MINI_THOROUGH") == "1":
        return
    name = zlib.crc32(request.node.nodeid.encode())
    seeds, fresh = np.random.SeedSequence(name), np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed=None: fresh(seeds.spawn(1)[0] if seed is None else seed))
    random.seed(name)
    np.random.seed(name)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(name)


@pytest.fixture
def global_streams_untouched():
    """Nothing between set-up and tear-down may draw from, or seed, the global streams of numpy, torch and random."""
    import torch

    def state():
        _, keys, position, *_ = np.random.get_state()
        return random.getstate(), keys.tolist(), position, torch.get_rng_state().tolist()

    before = state()
    yield
    assert state() == before
