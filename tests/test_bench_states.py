"""The benchmark of states: sane rows, and a meter that counts as paper and pencil do."""

import pytest
import torch
import torch.nn.functional as F
from test_backbone import backbone, moved
from test_bench import sane
from torch.utils.flop_counter import FlopCounterMode

from trinity_mini import bench_states as module
from trinity_mini.bench_states import Meter, bench_states, matmul_rate
from trinity_mini.files import UserError


def test_rows(monkeypatch):
    monkeypatch.setattr(module, "MODELS", ("random", "embedded"))
    values = sane(bench_states(quick=True))
    for name in ("random", "embedded"):
        assert values[f"states, {name}"] > 10
        assert 0.02 < values[f"share of the bound by operation count, {name}"] < 1.1
        assert values[f"matrix products of the machine, float32, {name}"] > 1
        cached, peak = values[f"memory of cached states, {name}"], values[f"memory at most, beside the weights, {name}"]
        assert 1 < cached < peak < 1000


def test_the_shape_of_qwen3_on_a_cpu():
    values = sane(bench_states(quick=True, model="qwen3-0.6b"))
    assert 0.02 < values["share of the bound by operation count, qwen3-0.6b"] < 1.1


def test_a_folder_or_device_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot use device"):
        bench_states(True, device="cuda:99")
    with pytest.raises(UserError, match="cannot load"):
        bench_states(True, model=str(tmp_path / "nothing"))


def test_the_meter_counts_operations():
    b = backbone("tiny")
    texts, deltas = ["abcdefgh#>", "abcdefij#>", "abcdxy#>"], moved(b, 3)
    with Meter() as meter, FlopCounterMode(display=False) as theirs:
        b.hidden(texts, deltas)
    attention = meter.flops.total() - theirs.get_total_flops()  # torch's own does not count the CPU's attention
    assert 0 < attention < 0.3 * meter.flops.total()
    q, k = torch.ones(2, 4, 5, 8), torch.ones(2, 2, 7, 8)
    a = torch.ones(6, 5, dtype=torch.bfloat16)
    with Meter() as meter:
        F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        torch.mm(a, a.T)
        F.linear(q, k.new_ones(3, 8), k.new_ones(3))
    attention, linear = 2 * 2 * (2 * 4 * 5) * 7 * 8, 2 * (2 * 4 * 5) * 8 * 3
    assert meter.flops == {torch.float32: attention + linear, torch.bfloat16: 2 * 6 * 5 * 6}


def test_the_meter_counts_memory():
    with Meter() as meter:
        a = torch.ones(1000)
        view = a[10:].view(-1, 10)
        for _ in range(5):
            b = view + 1
        assert 4000 + 3960 <= meter.live <= 4000 + 2 * 3960
        del a, b
        assert 4000 <= meter.live < 4000 + 3960
        del view
    assert meter.live < 1000 and 4000 + 2 * 3960 <= meter.peak < 4000 + 3 * 3960


def test_a_rate_is_of_this_machine():
    rates = [matmul_rate(torch.float32, torch.device("cpu"), 256) for _ in range(5)]
    assert 1e9 < max(rates) < 1e14
