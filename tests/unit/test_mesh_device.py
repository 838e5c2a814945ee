"""Devices: what is known of them, and the errors for what isn't there."""

import subprocess
import sys
import time

import pytest
import torch

import trireme.mesh.device as device_module
from trireme.errors import DeviceError, LayoutError
from trireme.mesh import (
    FormatSupport,
    LaunchEnvironment,
    autocast_kind,
    check_format,
    choose_device,
    collective_backend,
    device_facts,
    format_support,
    has_fused_optimizer,
    measure_matmul_flops_per_s,
    rng_states,
    seed_everywhere,
    set_rng_states,
    set_threads,
    synchronize,
    usable_cores,
    wants_pinned_memory,
)

_CPU = torch.device("cpu")


def test_a_plain_process_is_rank_0_of_1():
    environment = LaunchEnvironment.from_environ({})
    assert environment == LaunchEnvironment()
    assert not environment.launched


def test_the_launchers_variables_are_read():
    environment = LaunchEnvironment.from_environ(
        {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "TORCHELASTIC_RESTART_COUNT": "2",
        }
    )
    assert (environment.rank, environment.world_size) == (5, 8)
    assert (environment.local_rank, environment.local_world_size) == (1, 4)
    assert environment.restart_count == 2
    assert environment.launched


def test_without_a_local_rank_the_world_is_one_node():
    environment = LaunchEnvironment.from_environ({"RANK": "1", "WORLD_SIZE": "2"})
    assert (environment.local_rank, environment.local_world_size) == (1, 2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "one"}, "RANK='one'"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"WORLD_SIZE": "0"}, "at least 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 with WORLD_SIZE=2"),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=3"),
    ],
)
def test_variables_that_cannot_be_are_named(variables, message):
    with pytest.raises(LayoutError, match=message):
        LaunchEnvironment.from_environ(variables)


class _Accelerator:
    """What torch.accelerator tells of a node with two devices of a type this build doesn't have."""

    def __init__(self, monkeypatch):
        self.current = None
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
        monkeypatch.setattr(torch.accelerator, "set_device_index", self._set)

    def _set(self, index):
        self.current = index


def test_each_rank_takes_the_accelerator_at_its_local_rank(monkeypatch):
    accelerator = _Accelerator(monkeypatch)
    environment = LaunchEnvironment(rank=1, world_size=2, local_rank=1, local_world_size=2)
    assert choose_device(environment) == torch.device("xpu", 1)
    assert accelerator.current == 1


def test_more_ranks_than_devices_is_an_error_with_both_numbers(monkeypatch):
    _Accelerator(monkeypatch)
    environment = LaunchEnvironment(rank=2, world_size=3, local_rank=2, local_world_size=3)
    with pytest.raises(DeviceError, match=r"local rank 2 .* 2 of type xpu"):
        choose_device(environment)


def test_a_type_can_be_insisted_on(monkeypatch):
    assert choose_device(kind="cpu") == _CPU
    _Accelerator(monkeypatch)
    assert choose_device(kind="cpu") == _CPU
    with pytest.raises(DeviceError, match=r"'npu'.*'xpu'"):
        choose_device(kind="npu")


def test_facts_of_this_cpu_are_complete():
    facts = device_facts(_CPU)
    assert facts.kind == "cpu"
    assert facts.name
    assert facts.memory_bytes > 2**28
    assert facts.peak_source == "measured"
    assert facts.peak_of(torch.float32) > 1e8
    assert facts.peak_of(torch.float64) is None
    assert facts.support_of(torch.float32) is FormatSupport.NATIVE


def test_facts_without_measuring_cost_nothing_and_claim_nothing():
    facts = device_facts(_CPU, measure=False)
    assert facts.peak_source == "unknown"
    assert facts.peak_of(torch.float32) is None


def test_a_known_accelerators_peaks_come_from_the_catalogue(monkeypatch):
    monkeypatch.setattr(device_module, "device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(device_module, "format_support", lambda device: {})
    monkeypatch.setattr(device_module, "_memory_bytes", lambda device: 80 * 2**30)
    facts = device_facts(torch.device("cuda", 3))
    assert facts.peak_of("bfloat16") == 989e12
    assert facts.peak_source.startswith("https://")
    assert facts.index == 3


def test_formats_follow_the_flags_of_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert format_support(_CPU)["bfloat16"] is FormatSupport.NATIVE
    assert format_support(_CPU)["float16"] is FormatSupport.EMULATED
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_fp16": True})
    assert format_support(_CPU)["bfloat16"] is FormatSupport.EMULATED
    assert format_support(_CPU)["float16"] is FormatSupport.NATIVE


@pytest.mark.parametrize(
    ("capability", "bf16", "fp8"),
    [
        ((7, 0), FormatSupport.EMULATED, FormatSupport.MISSING),
        ((8, 0), FormatSupport.NATIVE, FormatSupport.MISSING),
        ((9, 0), FormatSupport.NATIVE, FormatSupport.NATIVE),
    ],
)
def test_formats_follow_the_capability_of_a_gpu(monkeypatch, capability, bf16, fp8):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    support = format_support(torch.device("cuda", 0))
    assert (support["bfloat16"], support["float8_e4m3fn"]) == (bf16, fp8)


def test_a_format_that_the_device_lacks_is_an_error_naming_those_it_has():
    check_format(_CPU, torch.bfloat16)
    with pytest.raises(DeviceError, match=r"float8_e4m3fn.*bfloat16.*float32"):
        check_format(_CPU, torch.float8_e4m3fn)


def test_measuring_keeps_to_its_time():
    start_s = time.perf_counter()
    assert measure_matmul_flops_per_s(_CPU, torch.float32, limit_s=0.2) > 1e8
    # One product may overrun; on a machine shared with other programs it may be preempted as well.
    assert time.perf_counter() - start_s < 2.0


_HOLD = """
import torch
from trireme.mesh import memory_in_use_bytes, peak_memory_bytes, reset_peak_memory

cpu = torch.device("cpu")
before_bytes = memory_in_use_bytes(cpu)
held = torch.ones(64 * 2**20 // 4)
assert memory_in_use_bytes(cpu) - before_bytes > 0.9 * held.nbytes
reset_peak_memory(cpu)
peak_bytes = peak_memory_bytes(cpu)
more = torch.ones(64 * 2**20 // 4)
assert peak_memory_bytes(cpu) - peak_bytes > 0.9 * more.nbytes
"""


def test_memory_in_use_follows_what_is_held():
    # In a process of its own: here an earlier test may have left freed pages that new tensors would reuse.
    done = subprocess.run([sys.executable, "-c", _HOLD], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_random_numbers_go_on_where_their_state_was_taken():
    seed_everywhere(_CPU, 3)
    torch.rand(7)
    states = rng_states(_CPU)
    expected = torch.rand(5)
    seed_everywhere(_CPU, 4)
    set_rng_states(_CPU, states)
    assert torch.equal(torch.rand(5), expected)


def test_random_states_of_another_device_type_are_refused():
    with pytest.raises(DeviceError, match=r"cpu, cuda.*cpu"):
        set_rng_states(_CPU, {**rng_states(_CPU), "cuda": torch.zeros(16, dtype=torch.uint8)})


def test_threads_are_those_asked_for_else_those_of_the_environment_else_the_cores(monkeypatch):
    before = torch.get_num_threads()
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert set_threads(2) == torch.get_num_threads() == 2
        assert set_threads(None) == torch.get_num_threads() == 1
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert set_threads(None) == usable_cores()
    finally:
        torch.set_num_threads(before)


def test_what_others_ask_of_a_cpu_has_an_answer():
    assert autocast_kind(_CPU) == "cpu"
    assert has_fused_optimizer(_CPU)
    assert not wants_pinned_memory(_CPU)
    assert collective_backend(_CPU) == "gloo"
    synchronize(_CPU)
