"""The log of live storages on sequences whose bytes are known."""

import pytest
import torch
from autoconfig.trainer.tracing.memory_log import MemoryLog

KIB = 1024


def kib(count: int) -> torch.Tensor:
    return torch.empty(count * KIB, dtype=torch.uint8)


def test_peak_is_the_largest_moment_not_the_sum() -> None:
    with MemoryLog() as log, log.phase("forward"):
        kept = kib(3)
        kib(5)  # dies at once
        later = kib(1)
    assert log.peak().bytes == 8 * KIB
    assert log.at(log.now - 1).bytes == 4 * KIB
    del kept, later


def test_views_and_repeated_looks_count_once() -> None:
    with MemoryLog() as log, log.phase("forward"):
        whole = kib(4)
        part = whole[: 2 * KIB].view(2, KIB)
        assert part.numel() == 2 * KIB
    assert log.peak().bytes == 4 * KIB


def test_activations_are_what_outlives_its_forward() -> None:
    with MemoryLog() as log:
        with log.phase("forward"):
            saved, scratch = kib(2), kib(4)
            del scratch
        with log.phase("backward"):
            gradient = kib(1)
            del saved, gradient
        at = log.peak()
    assert at.by_category["activations"] == 2 * KIB
    assert at.by_category["temporary"] == 4 * KIB


def test_received_for_a_forward_is_an_activation_and_for_a_backward_is_not() -> None:
    with MemoryLog() as log:
        with log.phase("forward"):
            pass
        received = kib(1)
        with log.phase("forward"):
            pass
        gradient = kib(2)
        with log.phase("backward"):
            at = log.now - 1
        del received, gradient
    assert log.at(at).by_category["activations"] == KIB
    assert log.at(at).by_category["temporary"] == 2 * KIB


def test_marked_storages_and_vocabulary_wide_tensors() -> None:
    with MemoryLog() as log:
        weight = kib(3)
        log.mark("weights", [weight, None])
        log.vocabulary = KIB
        with log.phase("forward"), log.scope("loss"):
            logits = kib(1).view(1, KIB)
            at = log.now - 1
            assert log.category(log.storages[-1]) == "logits"
        assert log.at(at).by_module["loss"]["logits"] == KIB
        assert log.at(at).by_category["weights"] == 3 * KIB
        del logits


def test_a_storage_that_shrinks_frees_its_bytes() -> None:
    with MemoryLog() as log, log.phase("forward"):
        tensor = kib(4)
        tensor.untyped_storage().resize_(0)
        assert log.at(log.now - 1).bytes == 0
        tensor.untyped_storage().resize_(4 * KIB)
        assert log.at(log.now - 1).bytes == 4 * KIB


def test_modules_own_what_their_forward_and_backward_make() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 4, bias=False))
    with MemoryLog() as log:
        log.watch(model)
        with log.phase("forward"):
            out = model(torch.ones(2, 8))
        with log.phase("backward"):
            out.sum().backward()
    names = {record.module for record in log.storages if record.operator == "mm"}
    assert names == {"0", "1"}
    assert {record.module for record in log.storages if log.phases[record.phase].kind == "backward"} >= {"0", "1"}


def test_the_patch_of_resize_is_taken_back() -> None:
    plain = torch.UntypedStorage.resize_
    with pytest.raises(RuntimeError, match="on purpose"), MemoryLog():
        raise RuntimeError("on purpose")
    assert torch.UntypedStorage.resize_ is plain
