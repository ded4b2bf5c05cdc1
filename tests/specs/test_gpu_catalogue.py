"""The GPU catalogue: every file loads and says where its numbers come from; every spelling in use finds its GPU."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnknownNameError
from autoconfig.specs.hardware import cluster as catalogue
from autoconfig.specs.hardware.cluster import gpu_from_mapping, gpu_ids, load_gpu, match_reported_gpu, reported_gpu

FOLDER = Path(catalogue.__file__).parents[1] / "catalogue" / "gpus"
NUMERIC = (
    "memory_bytes",
    "hbm_bytes_per_s",
    "num_sms",
    "link_bytes_per_s",
    "link_domain_size",
    "gpus_per_node",
    "nic_bytes_per_s",
)
PRECISIONS = {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"}
FACTS = [  # id, bf16 or fp16 peak, one-direction link, link domain, network per GPU: typed from datasheets, not from the files
    ("v100-32gb", 125e12, 150e9, 8, 6.25e9),
    ("a100-80gb", 312e12, 300e9, 8, 25e9),
    ("a800-80gb", 312e12, 200e9, 8, 25e9),
    ("h100-sxm-80gb", 989.4e12, 450e9, 8, 50e9),
    ("h200-sxm-141gb", 989.4e12, 450e9, 8, 50e9),
    ("h800-80gb", 989.4e12, 200e9, 8, 50e9),
    ("h20-96gb", 148e12, 450e9, 8, 50e9),
    ("b200-180gb", 2250e12, 900e9, 8, 50e9),
    ("gb200-192gb", 2500e12, 900e9, 72, 50e9),
    ("b300-288gb", 2250e12, 900e9, 8, 100e9),
    ("gb300-288gb", 2500e12, 900e9, 72, 100e9),
    ("mi300x-192gb", 1307.4e12, 448e9, 8, 50e9),
]
SPELLINGS = {  # every value of the columns gpu, system and hw in the measurement tables, and names that drivers report
    "A100": "a100-80gb",
    "A100-80GB": "a100-80gb",
    "A100-SXM-80GB": "a100-80gb",
    "A100-SXM4-80GB": "a100-80gb",
    "A800": "a800-80gb",
    "B200": "b200-180gb",
    "B200-180GB": "b200-180gb",
    "DGX-A100-80GB": "a100-80gb",
    "DGX-B200": "b200-180gb",
    "DGX-GB200": "gb200-192gb",
    "DGX-GB300": "gb300-288gb",
    "DGX-H100": "h100-sxm-80gb",
    "GB200": "gb200-192gb",
    "GB200-192GB": "gb200-192gb",
    "GB300": "gb300-288gb",
    "GH200": "gh200-96gb",
    "GH200-480GB": "gh200-96gb",
    "H100": "h100-sxm-80gb",
    "H100-SXM-80GB": "h100-sxm-80gb",
    "H100_NVL": "h100-nvl-94gb",
    "H200": "h200-sxm-141gb",
    "H200-SXM-141GB": "h200-sxm-141gb",
    "H800": "h800-80gb",
    "L40S": "l40s-48gb",
    "MI300X": "mi300x-192gb",
    "RTX-PRO-6000-Blackwell-Server": "rtx-pro-6000-96gb",
    "gb200": "gb200-192gb",
    "gb300": "gb300-288gb",
    "h100": "h100-sxm-80gb",
    "a100 40gb": "a100-40gb",
    "L4": "l4-24gb",
    "b300": "b300-288gb",
    "h20": "h20-96gb",
    "  H100_SXM ": "h100-sxm-80gb",
    "gb2": "gb200-192gb",
}
REPORTED = [  # name and MiB as nvidia-smi prints them
    ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm-80gb"),
    ("NVIDIA H100 PCIe", 81559, "h100-pcie-80gb"),
    ("NVIDIA H100 NVL", 95830, "h100-nvl-94gb"),
    ("NVIDIA A100-SXM4-80GB", 81920, "a100-80gb"),
    ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
    ("NVIDIA A800-SXM4-80GB", 81920, "a800-80gb"),
    ("NVIDIA H200", 143771, "h200-sxm-141gb"),
    ("NVIDIA H20", 97871, "h20-96gb"),
    ("NVIDIA H800", 81559, "h800-80gb"),
    ("NVIDIA B200", 183359, "b200-180gb"),
    ("NVIDIA GB200", 189471, "gb200-192gb"),
    ("NVIDIA B300 SXM6 AC", 275040, "b300-288gb"),
    ("NVIDIA GB300", 284208, "gb300-288gb"),
    ("NVIDIA GH200 480GB", 97871, "gh200-96gb"),
    ("NVIDIA GH200 144G HBM3e", 146831, "gh200-144gb"),
    ("NVIDIA L4", 23034, "l4-24gb"),
    ("NVIDIA L40S", 46068, "l40s-48gb"),
    ("NVIDIA A10G", 23028, "a10g-24gb"),
    ("NVIDIA RTX A6000", 46068, "a6000-48gb"),
    ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24gb"),
    ("NVIDIA GeForce RTX 5090", 32607, "rtx-5090-32gb"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000-96gb"),
    ("Tesla V100-SXM2-16GB", 16384, "v100-16gb"),
    ("Tesla V100-SXM2-32GB", 32768, "v100-32gb"),
]


def raw(gpu: str) -> dict:
    return json.loads((FOLDER / f"{gpu}.json").read_text(encoding="utf-8"))


def test_catalogue_is_complete():
    assert len(gpu_ids()) >= 26
    assert list(gpu_ids()) == sorted(path.stem for path in FOLDER.iterdir())


@pytest.mark.parametrize("gpu", gpu_ids())
def test_every_number_has_a_source(gpu):
    data = raw(gpu)
    sources = data["sources"]
    needed = [key for key in NUMERIC if key not in sources]
    needed += [p for p in data["flops_per_s"] if "flops_per_s" not in sources and f"flops_per_s.{p}" not in sources]
    needed += ["compute_capability"] if data["compute_capability"] is not None and "compute_capability" not in sources else []
    assert not needed
    assert all(len(text) >= 20 for key, text in sources.items() if not text.startswith("8 cards"))
    assert {key.split(".")[0] for key in sources} <= set(data)


@pytest.mark.parametrize("gpu", gpu_ids())
def test_numbers_are_sane(gpu):
    spec = load_gpu(gpu)
    peaks = spec.flops_per_s
    nominal_bytes = int(gpu.rsplit("-", 1)[1].removesuffix("gb")) * 2**30
    assert spec.id == gpu
    assert 0.9 <= spec.memory_bytes / nominal_bytes <= 1.0
    assert set(peaks) <= PRECISIONS
    assert 10e12 < peaks["fp32"] <= peaks["fp16"] < 3e15
    if spec.architecture != "volta":
        assert peaks["bf16"] == peaks["fp16"]
    if "tf32" in peaks:
        assert peaks["fp32"] <= peaks["tf32"] and peaks["bf16"] / peaks["tf32"] == pytest.approx(2.0, rel=0.02)
    if "fp8" in peaks:
        assert peaks["fp8"] / peaks["fp16"] == pytest.approx(2.0, rel=0.03)
    assert 0.25e12 < spec.hbm_bytes_per_s < 10e12
    assert spec.link in ("nvlink", "xgmi", "pcie")
    assert 30e9 <= spec.link_bytes_per_s <= 1e12 and spec.nic_bytes_per_s < spec.link_bytes_per_s
    assert spec.link_domain_size % spec.gpus_per_node == 0 or spec.gpus_per_node % spec.link_domain_size == 0
    assert 50 <= spec.num_sms <= 320
    assert (spec.compute_capability is None) == (spec.vendor == "amd")


@pytest.mark.parametrize(("gpu", "peak", "link", "domain", "nic"), FACTS)
def test_published_facts(gpu, peak, link, domain, nic):
    spec = load_gpu(gpu)
    assert spec.flops_per_s["fp16"] == peak
    assert (spec.link_bytes_per_s, spec.link_domain_size, spec.nic_bytes_per_s) == (link, domain, nic)


def test_precisions_that_a_gpu_lacks_are_refused():
    assert load_gpu("h100").peak_flops_per_s("fp8") == 1978.9e12
    with pytest.raises(InputError, match="a100-80gb has no fp8 matrix unit; it has bf16"):
        load_gpu("a100").peak_flops_per_s("fp8")


@pytest.mark.parametrize(("name", "gpu"), SPELLINGS.items())
def test_spellings_resolve(name, gpu):
    assert load_gpu(name).id == gpu
    assert load_gpu(name.upper().replace("-", "_")).id == gpu
    assert load_gpu(name.lower().replace("-", " ")).id == gpu


def test_aliases_resolve_to_their_own_file():
    for gpu in gpu_ids():
        assert [alias for alias in raw(gpu)["aliases"] if load_gpu(alias).id != gpu] == []


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("v100", ["v100-16gb", "v100-32gb"]),
        ("h10", ["h100-nvl-94gb", "h100-pcie-80gb", "h100-sxm-80gb"]),
        ("gb", ["gb200-192gb", "gb300-288gb"]),
        ("mi3", ["mi300x-192gb", "mi325x-256gb", "mi355x-288gb"]),
    ],
)
def test_ambiguous_beginnings_name_the_candidates(name, candidates):
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(name)
    assert all(gpu in str(caught.value) for gpu in candidates)


@pytest.mark.parametrize(
    "name", ["", "  ", "nvidia", "h1000", "A100-PCIE-20GB", "../software/litgpt", "h100-sxm-80gb.json", "*", "\0"]
)
def test_unknown_names_are_refused(name):
    with pytest.raises(UnknownNameError, match="autoconfig gpus"):
        load_gpu(name)


@pytest.mark.parametrize("name", ["x" * 101, 7, None])
def test_things_that_are_no_names(name):
    with pytest.raises(InputError, match="at most 100 characters"):
        load_gpu(name)


def test_near_names_are_offered():
    with pytest.raises(UnknownNameError, match="h100"):
        load_gpu("h1000")


def test_one_gpu_is_read_without_parsing_the_others(monkeypatch):
    for cached in ("_raw", "_load", "_resolve", "_aliases", "gpu_ids"):
        getattr(catalogue, cached).cache_clear()
    monkeypatch.setattr(catalogue, "_aliases", lambda: pytest.fail("all files were parsed"))
    started = time.perf_counter()
    load_gpu("DGX-B200")
    load_gpu("a100-80gb")
    assert time.perf_counter() - started < 0.05  # 0.5 ms on an idle core; the bound leaves room for busy test machines


def test_broken_numbers_are_refused():
    good = raw("h100-sxm-80gb")
    for change in (
        {"memory_bytes": -1},
        {"memory_bytes": 8.5e10},
        {"num_sms": True},
        {"hbm_bytes_per_s": "3e12"},
        {"flops_per_s": {}},
        {"link_bytes_per_s": float("nan")},
        {"nic_bytes_per_s": float("inf")},
        {"flops_per_s": {"bf16": 0}},
    ):
        with pytest.raises(InputError):
            gpu_from_mapping({**good, **change})


@pytest.mark.parametrize(("name", "mib", "gpu"), REPORTED)
def test_reported_names_are_matched(name, mib, gpu):
    assert match_reported_gpu(name, mib * 2**20).id == gpu


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("NVIDIA GeForce RTX 4090", 49140),
        ("NVIDIA GeForce GTX 1080", 8192),
        ("", 81559),
        ("NVIDIA H100", 0),
        ("NVIDIA H200 NVL", 143771),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728),
        ("NVIDIA H100 80GB HBM3", float("nan")),
    ],
)
def test_reported_gpus_that_the_catalogue_lacks(name, mib):
    with pytest.raises(InputError, match="--gpu"):
        match_reported_gpu(name, mib * 2**20)


def fake_smi(monkeypatch, stdout="", stderr="", code=0, error=None):
    def run(*args, **kwargs):
        assert kwargs["timeout"] > 0
        if error:
            raise error
        return subprocess.CompletedProcess(args, code, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)


def test_local_gpu_is_read_from_nvidia_smi(monkeypatch):
    fake_smi(monkeypatch, "NVIDIA H100 80GB HBM3, 81559\n" * 8)
    assert match_reported_gpu(*reported_gpu([])).id == "h100-sxm-80gb"


def test_local_gpus_of_several_types(monkeypatch):
    fake_smi(monkeypatch, "NVIDIA H100 80GB HBM3, 81559\nNVIDIA L4, 23034\n")
    with pytest.raises(InputError, match="several types"):
        reported_gpu([])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"error": FileNotFoundError()},
        {"error": PermissionError()},
        {"error": subprocess.TimeoutExpired("nvidia-smi", 20)},
        {"stdout": "NVIDIA-SMI has failed because it could not talk to the driver", "code": 9},
        {"stdout": ""},
        {"stdout": "NVIDIA H100, [N/A]\n"},
        {"stdout": "a, .\n"},
        {"stdout": "\x00\xff garbage"},
    ],
)
def test_no_local_gpu_says_what_was_tried(monkeypatch, kwargs):
    fake_smi(monkeypatch, **kwargs)
    tried: list[str] = []
    assert reported_gpu(tried) is None
    assert re.search(r"nvidia-smi .*nvidia-ml-py is not installed", "; ".join(tried))
