"""The GPU catalogue: every file loads and says where its numbers come from; cluster files, good, broken and random."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from autoconfig.specs.errors import FileError, InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.hardware import cluster as catalogue
from autoconfig.specs.hardware.cluster import (
    ClusterSpec,
    cluster_of,
    gpu_from_mapping,
    gpu_ids,
    load_gpu,
    match_reported_gpu,
    reported_gpu,
)
from autoconfig.specs.hardware.cluster_file import KEYS, cluster_from_mapping, load_cluster
from hypothesis import given
from hypothesis import strategies as st
from small_models import H100
from tables import table, tabled

FOLDER = Path(catalogue.__file__).parents[1] / "catalogue" / "gpus"
NUMERIC = ("memory_bytes", "hbm_bytes_per_s", "num_sms", "link_bytes_per_s", "link_domain_size", "gpus_per_node",
           "nic_bytes_per_s")  # fmt: skip
PRECISIONS = {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"}
# id, bf16 or fp16 peak, one-direction link, link domain, network per GPU: typed from datasheets, not from the files
FACTS = table(__file__, "gpu_facts")
# every value of the columns gpu, system and hw in the measurement tables, and names that drivers report
SPELLINGS = table(__file__, "gpu_spellings")
# name and MiB as nvidia-smi prints them
REPORTED = table(__file__, "reported_gpus")


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
    assert 8e12 < peaks["fp32"] <= peaks["fp16"] < 3e15
    if spec.architecture not in ("volta", "turing"):
        assert peaks["bf16"] == peaks["fp16"]
    if "tf32" in peaks:
        assert peaks["fp32"] <= peaks["tf32"] and peaks["bf16"] / peaks["tf32"] == pytest.approx(2.0, rel=0.02)
    if "fp8" in peaks:
        assert peaks["fp8"] / peaks["fp16"] == pytest.approx(2.0, rel=0.03)
    assert 0.25e12 < spec.hbm_bytes_per_s < 10e12
    assert spec.link in ("nvlink", "xgmi", "pcie")
    assert 16e9 <= spec.link_bytes_per_s <= 1e12 and spec.nic_bytes_per_s < spec.link_bytes_per_s
    assert spec.link_domain_size % spec.gpus_per_node == 0 or spec.gpus_per_node % spec.link_domain_size == 0
    assert 40 <= spec.num_sms <= 320
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


@pytest.mark.parametrize("name", ["", "  ", "nvidia", "h1000", "A100-PCIE-20GB", "../software/litgpt", "h100-sxm-80gb.json",
                                  "*", "\0"])  # fmt: skip
def test_unknown_names_are_refused(name):
    with pytest.raises(UnknownNameError, match="autoconfig gpus"):
        load_gpu(name)


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


@pytest.mark.parametrize(("name", "mib"), [
    ("NVIDIA GeForce RTX 4090", 32768), ("NVIDIA GeForce GTX 1080", 8192), ("", 81559), ("NVIDIA H100", 0),
    ("NVIDIA H200 NVL", 183771),
    ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728), ("NVIDIA H100 80GB HBM3", float("nan")),
])  # fmt: skip
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


@pytest.mark.parametrize("kwargs", [
    {"error": FileNotFoundError()}, {"error": PermissionError()}, {"error": subprocess.TimeoutExpired("nvidia-smi", 20)},
    {"stdout": "NVIDIA-SMI has failed because it could not talk to the driver", "code": 9}, {"stdout": ""},
    {"stdout": "NVIDIA H100, [N/A]\n"}, {"stdout": "a, .\n"}, {"stdout": "\x00\xff garbage"},
])  # fmt: skip
def test_no_local_gpu_says_what_was_tried(monkeypatch, kwargs):
    fake_smi(monkeypatch, **kwargs)
    tried: list[str] = []
    assert reported_gpu(tried) is None
    assert re.search(r"nvidia-smi .*nvidia-ml-py is not installed", "; ".join(tried))


EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "cluster.json"
INLINE = {"id": "x1", "vendor": "acme", "architecture": "hopper", "memory_bytes": 64 * 2**30, "hbm_bytes_per_s": 2e12,
          "flops_per_s": {"bf16": 5e14, "fp32": 5e13}, "num_sms": 100, "link": "nvlink", "link_bytes_per_s": 2e11,
          "link_domain_size": 8, "gpus_per_node": 8, "nic_bytes_per_s": 2.5e10}  # fmt: skip


def write(folder: Path, content: object, name: str = "c.json") -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_usual_servers():
    cluster = cluster_of(load_gpu("h100"), 1024)
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.link_domain_size) == (128, 8, 8)
    assert (cluster.link_bytes_per_s, cluster.nic_bytes_per_s) == (450e9, 50e9)
    assert cluster.memory_bytes == load_gpu("h100").memory_bytes
    rack = cluster_of(load_gpu("gb200"), 144)
    assert (rack.num_nodes, rack.gpus_per_node, rack.link_domain_size) == (36, 4, 72)
    assert cluster_of(load_gpu("h100"), 4).gpus_per_node == 4


@pytest.mark.parametrize("change", [
    {"num_gpus": 0}, {"num_gpus": -8}, {"num_gpus": 1_000_001}, {"gpus_per_node": 0}, {"gpus_per_node": -1},
    {"link_domain_size": 0},
    {"link_domain_size": 12}, {"link_bytes_per_s": 0.0}, {"nic_bytes_per_s": float("nan")}, {"nic_bytes_per_s": float("inf")},
    {"memory_bytes": 0}, {"memory_bytes": -1}, {"memory_bytes": 10**30},
    {"nic_bytes_per_s": 7.8e307}, {"link_bytes_per_s": 1e300},
])  # fmt: skip
def test_impossible_clusters_are_refused(change):
    with pytest.raises(InputError):
        cluster_of(load_gpu("h100"), **{"num_gpus": 64, **change})


def test_example_file_loads_and_the_command_line_wins():
    cluster = load_cluster(EXAMPLE)
    assert isinstance(cluster, ClusterSpec)
    assert (cluster.num_gpus, cluster.num_nodes, cluster.nic_bytes_per_s, cluster.memory_bytes) == (128, 16, 25e9, 79 * 2**30)
    assert load_cluster(str(EXAMPLE), 256).num_gpus == 256
    assert {key for key in json.loads(EXAMPLE.read_text()) if key not in KEYS} == set()


def test_inline_gpu(tmp_path):
    cluster = load_cluster(write(tmp_path, {"gpu": INLINE, "num_gpus": 16}))
    assert (cluster.gpu.id, cluster.gpu.name, cluster.memory_bytes, cluster.num_nodes) == ("x1", "x1", 64 * 2**30, 2)
    full = {**INLINE, "name": "X One", "compute_capability": 9.0, "sources": {"num_sms": "us"}}
    assert load_cluster(write(tmp_path, {"gpu": full}), 8).gpu.name == "X One"


@pytest.mark.parametrize(("change", "said"), [
    ({"gpus": 8}, "unknown cluster key 'gpus'; did you mean"), ({"gpu_per_node": 8}, "did you mean gpus_per_node"),
    ({"gpu": "h1000"}, "unknown GPU"), ({"gpu": "v100"}, "v100-16gb"), ({"gpu": None}, "gpu is missing"),
    ({"gpu": 7}, "gpu is 7"),
    ({"gpu": {}}, "gpu lacks id, vendor"), ({"gpu": {**INLINE, "sms": 4}}, "unknown key of gpu 'sms'"),
    ({"gpu": {**INLINE, "memory_bytes": -1}}, "memory_bytes=-1"),
    ({"gpu": {**INLINE, "flops_per_s": {"bf17": 1e14}}}, "its keys are"),
    ({"gpu": {**INLINE, "flops_per_s": 5}}, "at least one precision"),
    ({"gpu": {**INLINE, "link": "string"}}, "nvlink, xgmi, pcie"),
    ({"gpu": {**INLINE, "compute_capability": "9"}}, "compute_capability"), ({"gpu": {**INLINE, "sources": 5}}, "sources"),
    ({"gpu": {**INLINE, "id": 5}}, "printable"), ({"gpu": {**INLINE, "link": ["nvlink"]}}, "printable"),
    ({"num_gpus": "64"}, "whole number from 1 to 1,000,000"), ({"num_gpus": 64.5}, "whole"), ({"num_gpus": True}, "whole"),
    ({"num_gpus": 0}, "whole"), ({"num_gpus": 10**30}, "whole"), ({"num_gpus": None}, "whole"),
    ({"gpus_per_node": 7}, "use 63 or 70"),
    ({"gpus_per_node": -8}, "gpus_per_node=-8"), ({"link": "ethernet"}, "nvlink, xgmi, pcie"),
    ({"link": "pcie"}, "link_gb_per_s"),
    ({"link": 3}, "printable"), ({"link_gb_per_s": 0}, "above 0"), ({"link_gb_per_s": 1e9}, "at most 100,000"),
    ({"link_domain_size": 12}, "neither a multiple"), ({"nics_per_node": 4}, "belong together"),
    ({"nic_gbit_per_s": 4}, "belong together"),
    ({"nics_per_node": 4, "nic_gbit_per_s": 400, "nic_gbit_per_s_per_gpu": 400}, "not both"),
    ({"memory_gib": 80}, "at most the 79"), ({"power_limit": 900}, "use 245 to 700 W"), ({"power_limit": 0}, "above 0"),
    ({"memory_bandwidth": 2.4e12}, "at most 1,000"),
    ({"link_gb_per_s": 1e-304}, "from 1 to"),
    ({"memory_gib": 1e-12}, "above 0"), ({"memory_gib": -5}, "above 0"), ({"memory_gib": "79"}, "number above 0"),
    ({"name": "a\nb"}, "printable"), ({"name": "x" * 300}, "200 characters"), ({"name": ["x"]}, "printable"),
])  # fmt: skip
def test_bad_values_say_what_is_allowed(tmp_path, change, said):
    path = write(tmp_path, {"gpu": "h100", "num_gpus": 64, **change})
    with pytest.raises(InputError, match=r"c\.json") as caught:
        load_cluster(path)
    assert said in str(caught.value) and len(str(caught.value)) < 1200


def test_a_card_that_was_made_with_more_memory_is_said(tmp_path):
    """An RTX 3090 with 48 GB; 24 of 23.7 GiB is the nominal figure."""
    cluster = load_cluster(write(tmp_path, {"gpu": "rtx-3090", "num_gpus": 1, "memory_gib": 47.5}))
    assert cluster.memory_bytes == int(47.5 * 2**30)
    with pytest.raises(InputError, match=r"at most the 23\.67 GiB of rtx-3090-24gb .* or at least 1\.05 times"):
        load_cluster(write(tmp_path, {"gpu": "rtx-3090", "num_gpus": 1, "memory_gib": 24}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("P100", "without matrix units"),
        ("NVIDIA Tesla P40", "without matrix units"),
        ("Ascend 910B", "Huawei's Ascend"),
        ("910b3", "Huawei's Ascend"),
        ("gaudi3", "Intel's accelerator"),
        ("intel-pvc-1550", "Intel's accelerator"),
        ("TPU v5e", "Google's TPU"),
        ("trn2", "Amazon's accelerator"),
        ("MI250X", "before CDNA 3"),
    ],
)
def test_accelerators_that_are_left_out_are_refused_as_what_they_are(name, kind):
    with pytest.raises(UnsupportedError, match=f"{kind}.*--cluster") as caught:
        load_gpu(name)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["rtx-3080-ti", "h1000", "rtx-2080"])
def test_no_gpu_of_another_number_is_suggested(name):
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(name)
    assert not caught.value.nearest


def test_consumer_cards_reach_each_other_through_host_memory():
    """PCI Express without peer access, eight in a server; 40 GB of HBM2 an A100, 64 on LEONARDO, whose chip has 124 SMs."""
    for name in ("rtx-3090", "rtx-4080", "rtx-4090-48gb", "rtx-5080"):
        card = load_gpu(name)
        assert (card.link, card.link_domain_size) == ("pcie", 8)
        assert "through host memory" in card.sources["link_bytes_per_s"]
    assert load_gpu("a100-64gb").flops_per_s["bf16"] / load_gpu("a100").flops_per_s["bf16"] == pytest.approx(
        124 / 108, rel=1e-3
    )


def test_number_of_gpus_must_be_said(tmp_path):
    with pytest.raises(InputError, match="give --gpus"):
        load_cluster(write(tmp_path, {"gpu": "h100"}))


@pytest.mark.parametrize(("content", "name"), [
    (b"", "c.json"), (b"{", "c.json"), (b'{"gpu": "h100", "num', "c.json"), (b"[]", "c.json"), (b"null", "c.json"),
    (b"12", "c.json"),
    (b"\x00\x01\x02\xff\xfe", "c.json"), (b'{"gpu": "h100", "num_gpus": NaN}', "c.json"),
    (b'{"memory_gib": -Infinity}', "c.json"),
    (b'{"gpu": "h100", "gpu": "a100"}', "c.json"), (b"[" * 200_000, "c.json"),
    (b'{"num_gpus": ' + b"9" * 10_000 + b"}", "c.json"),
    (b"gpu = ", "c.toml"), (b"gpu: h100\n", "c.yaml"), (b"{" + b" " * 1_000_001 + b"}", "c.json"), (b"\xed\xa0\x80", "c.json"),
])  # fmt: skip
def test_broken_files_are_refused(tmp_path, content, name):
    with pytest.raises(FileError) as caught:
        load_cluster(write(tmp_path, content, name))
    assert name in str(caught.value) and len(str(caught.value)) < 500


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(8), st.just(0.5),
                    st.just("h100"))  # fmt: skip
VALUES = st.recursive(SCALARS, max_leaves=6, extend=lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)))  # fmt: skip
CHANGES = st.dictionaries(st.sampled_from([*INLINE, "sources", "name"]), VALUES, max_size=3)
INLINES = CHANGES.map(lambda change: {**INLINE, **change})
OBJECTS = st.fixed_dictionaries({}, optional={
    **{key: VALUES for key in KEYS}, "gpu": st.one_of(st.just("h100"), INLINES, VALUES), "zzz": VALUES})  # fmt: skip


@given(data=OBJECTS)
def test_any_object_gives_a_cluster_or_an_input_error(data):
    try:
        cluster = cluster_from_mapping(data)
    except InputError as error:
        assert str(error) and "\n" not in str(error)
        return
    assert cluster.num_gpus >= 1 and cluster.num_nodes * cluster.gpus_per_node >= cluster.num_gpus


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".json", ".toml", ""]))
def test_any_bytes_give_a_file_error_or_an_input_error(tmp_path_factory, content, suffix):
    path = write(tmp_path_factory.getbasetemp(), content, "fuzz" + suffix)
    with pytest.raises(InputError):
        load_cluster(path, 8)


@tabled
def test_numbers_of_a_cluster_that_are_not_believed(key, most):
    with pytest.raises(InputError, match=f"{key}={most * 3 // 2} must be .*(at most|from 1 to) {most:,}$"):
        cluster_from_mapping({"gpu": "h100", "num_gpus": 8, key: most * 3 // 2})


@pytest.mark.parametrize(("share", "known"), [(0.901, True), (0.899, False), (1.099, True), (1.101, False), (1.0, True)])
def test_a_reported_gpu_may_differ_by_a_tenth_of_its_memory(share, known):
    def ask():
        return match_reported_gpu("NVIDIA H100 80GB HBM3", H100.memory_bytes * share)

    if known:
        assert ask().id == H100.id
    else:
        with pytest.raises(InputError, match="with other memory"):
            ask()


@tabled
def test_a_domain_is_of_whole_nodes(gpu, per_node, domain):
    assert cluster_of(load_gpu(gpu), per_node, gpus_per_node=per_node).link_domain_size == domain


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (8, 1), (16, 2), (24, 3)])
def test_nodes_in_use(gpus, nodes):
    assert cluster_of(H100, gpus).num_nodes == nodes


def test_a_dgx_h200_has_less_than_a_tenth_of_its_links_in_its_network():
    cluster = cluster_of(load_gpu("h200"), 16)
    assert cluster.link_bytes_per_s == 450e9 and cluster.nic_bytes_per_s == 400e9 / 8 and cluster.hbm_bytes_per_s == 4.8e12


def test_products_in_16_bits_are_of_fp16_where_there_is_no_bf16():
    assert load_gpu("t4").sixteen_bit_flops_per_s == 65e12
    assert load_gpu("h100").sixteen_bit_flops_per_s == 989.4e12
