"""ClusterSpec's own checks, and cluster files: good ones, broken ones and random ones."""

import json
from pathlib import Path

import pytest
from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.hardware.cluster import ClusterSpec, cluster_of, load_gpu
from autoconfig.specs.hardware.cluster_file import KEYS, cluster_from_mapping, load_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "cluster.json"
INLINE = {
    "id": "x1",
    "vendor": "acme",
    "architecture": "hopper",
    "memory_bytes": 64 * 2**30,
    "hbm_bytes_per_s": 2e12,
    "flops_per_s": {"bf16": 5e14, "fp32": 5e13},
    "num_sms": 100,
    "link": "nvlink",
    "link_bytes_per_s": 2e11,
    "link_domain_size": 8,
    "gpus_per_node": 8,
    "nic_bytes_per_s": 2.5e10,
}


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


@pytest.mark.parametrize(
    ("gpu", "per_node", "domain"),
    [
        ("h100", 4, 4),
        ("h100", 16, 16),
        ("gb200", 8, 72),
        ("gb200", 16, 64),
        ("gb200", 100, 100),
        ("h100-nvl", 4, 2),
        ("h100-nvl", 1, 1),
    ],
)
def test_link_domain_follows_other_nodes(gpu, per_node, domain):
    assert cluster_of(load_gpu(gpu), per_node * 2, gpus_per_node=per_node).link_domain_size == domain


def test_partly_used_nodes_are_refused_with_the_neighbours():
    with pytest.raises(InputError, match="1000 GPUs in nodes of 7 leave a node partly used; use 994 or 1001"):
        cluster_of(load_gpu("h100"), 1000, gpus_per_node=7)
    assert cluster_of(load_gpu("h100"), 1001, gpus_per_node=7).num_nodes == 143


@pytest.mark.parametrize(
    "change",
    [
        {"num_gpus": 0},
        {"num_gpus": -8},
        {"num_gpus": 1_000_001},
        {"gpus_per_node": 0},
        {"gpus_per_node": -1},
        {"link_domain_size": 0},
        {"link_domain_size": 12},
        {"link_bytes_per_s": 0.0},
        {"nic_bytes_per_s": float("nan")},
        {"nic_bytes_per_s": float("inf")},
        {"memory_bytes": 0},
        {"memory_bytes": -1},
        {"memory_bytes": 10**30},
        {"nic_bytes_per_s": 7.8e307},
        {"link_bytes_per_s": 1e300},
    ],
)
def test_impossible_clusters_are_refused(change):
    with pytest.raises(InputError):
        cluster_of(load_gpu("h100"), **{"num_gpus": 64, **change})


def test_example_file_loads_and_the_command_line_wins():
    cluster = load_cluster(EXAMPLE)
    assert isinstance(cluster, ClusterSpec)
    assert (cluster.num_gpus, cluster.num_nodes, cluster.nic_bytes_per_s, cluster.memory_bytes) == (128, 16, 25e9, 79 * 2**30)
    assert load_cluster(str(EXAMPLE), 256).num_gpus == 256
    assert {key for key in json.loads(EXAMPLE.read_text()) if key not in KEYS} == set()


def test_toml_and_json_say_the_same(tmp_path):
    toml = 'gpu = "a100"\nnum_gpus = 64\nnic_gbit_per_s_per_gpu = 100\nlink = "PCIe"\nlink_gb_per_s = 32\n'
    data = {"gpu": "a100", "num_gpus": 64, "nic_gbit_per_s_per_gpu": 100, "link": "pcie", "link_gb_per_s": 32}
    cluster = load_cluster(write(tmp_path, toml, "c.TOML"))
    assert cluster == load_cluster(write(tmp_path, data))
    assert (cluster.gpu.link, cluster.link_bytes_per_s, cluster.nic_bytes_per_s) == ("pcie", 32e9, 12.5e9)
    assert load_cluster(write(tmp_path, b"\xef\xbb\xbf" + json.dumps(data).encode())) == cluster


def test_inline_gpu(tmp_path):
    cluster = load_cluster(write(tmp_path, {"gpu": INLINE, "num_gpus": 16}))
    assert (cluster.gpu.id, cluster.gpu.name, cluster.memory_bytes, cluster.num_nodes) == ("x1", "x1", 64 * 2**30, 2)
    full = {**INLINE, "name": "X One", "compute_capability": 9.0, "sources": {"num_sms": "us"}}
    assert load_cluster(write(tmp_path, {"gpu": full}), 8).gpu.name == "X One"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": 8}, "unknown cluster key 'gpus'; did you mean"),
        ({"gpu_per_node": 8}, "did you mean gpus_per_node"),
        ({"gpu": "h1000"}, "unknown GPU"),
        ({"gpu": "v100"}, "v100-16gb"),
        ({"gpu": None}, "gpu is missing"),
        ({"gpu": 7}, "gpu is 7"),
        ({"gpu": {}}, "gpu lacks id, vendor"),
        ({"gpu": {**INLINE, "sms": 4}}, "unknown key of gpu 'sms'"),
        ({"gpu": {**INLINE, "memory_bytes": -1}}, "memory_bytes=-1"),
        ({"gpu": {**INLINE, "flops_per_s": {"bf17": 1e14}}}, "its keys are"),
        ({"gpu": {**INLINE, "flops_per_s": 5}}, "at least one precision"),
        ({"gpu": {**INLINE, "link": "string"}}, "nvlink, xgmi, pcie"),
        ({"gpu": {**INLINE, "compute_capability": "9"}}, "compute_capability"),
        ({"gpu": {**INLINE, "sources": 5}}, "sources"),
        ({"gpu": {**INLINE, "id": 5}}, "printable"),
        ({"gpu": {**INLINE, "link": ["nvlink"]}}, "printable"),
        ({"num_gpus": "64"}, "whole number from 1 to 1,000,000"),
        ({"num_gpus": 64.5}, "whole"),
        ({"num_gpus": True}, "whole"),
        ({"num_gpus": 0}, "whole"),
        ({"num_gpus": 10**30}, "whole"),
        ({"num_gpus": None}, "whole"),
        ({"gpus_per_node": 7}, "use 63 or 70"),
        ({"gpus_per_node": -8}, "gpus_per_node=-8"),
        ({"link": "ethernet"}, "nvlink, xgmi, pcie"),
        ({"link": "pcie"}, "link_gb_per_s"),
        ({"link": 3}, "printable"),
        ({"link_gb_per_s": 0}, "above 0"),
        ({"link_gb_per_s": 1e9}, "at most 100,000"),
        ({"link_domain_size": 12}, "neither a multiple"),
        ({"nics_per_node": 4}, "belong together"),
        ({"nic_gbit_per_s": 4}, "belong together"),
        ({"nics_per_node": 4, "nic_gbit_per_s": 400, "nic_gbit_per_s_per_gpu": 400}, "not both"),
        ({"memory_gib": 80}, "at most the 79"),
        ({"memory_gib": 1e-12}, "above 0"),
        ({"memory_gib": -5}, "above 0"),
        ({"memory_gib": "79"}, "number above 0"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 300}, "200 characters"),
        ({"name": ["x"]}, "printable"),
    ],
)
def test_bad_values_say_what_is_allowed(tmp_path, change, said):
    path = write(tmp_path, {"gpu": "h100", "num_gpus": 64, **change})
    with pytest.raises(InputError, match=r"c\.json") as caught:
        load_cluster(path)
    assert said in str(caught.value) and len(str(caught.value)) < 1200


def test_number_of_gpus_must_be_said(tmp_path):
    with pytest.raises(InputError, match="give --gpus"):
        load_cluster(write(tmp_path, {"gpu": "h100"}))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "c.json"),
        (b"{", "c.json"),
        (b'{"gpu": "h100", "num', "c.json"),
        (b"[]", "c.json"),
        (b"null", "c.json"),
        (b"12", "c.json"),
        (b"\x00\x01\x02\xff\xfe", "c.json"),
        (b'{"gpu": "h100", "num_gpus": NaN}', "c.json"),
        (b'{"memory_gib": -Infinity}', "c.json"),
        (b'{"gpu": "h100", "gpu": "a100"}', "c.json"),
        (b"[" * 200_000, "c.json"),
        (b'{"num_gpus": ' + b"9" * 10_000 + b"}", "c.json"),
        (b"gpu = ", "c.toml"),
        (b"gpu: h100\n", "c.yaml"),
        (b"{" + b" " * 1_000_001 + b"}", "c.json"),
        (b"\xed\xa0\x80", "c.json"),
    ],
)
def test_broken_files_are_refused(tmp_path, content, name):
    with pytest.raises(FileError) as caught:
        load_cluster(write(tmp_path, content, name))
    assert name in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content",
    [
        b"gpu = 'h100'\nnum_gpus = 0x" + b"f" * 9000,
        b"gpu = 'h100'\nnum_gpus = 8\nmemory_gib = nan",
        b"gpu = 'h100'\nnum_gpus = 1979-05-27",
        b"gpu = 'h100'\nnum_gpus = 8\nmemory_gib = inf",
    ],
)
def test_odd_toml_values(tmp_path, content):
    with pytest.raises(InputError, match=r"c\.toml"):
        load_cluster(write(tmp_path, content, "c.toml"))


def test_things_that_are_no_files(tmp_path):
    for path in (tmp_path, tmp_path / "missing.json", "/dev/zero", "/dev/null", "a\0b", "x" * 5000, "", None, 3.5):
        with pytest.raises(FileError):
            load_cluster(path)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(8), st.just(0.5), st.just("h100")
)
VALUES = st.recursive(
    SCALARS,
    max_leaves=6,
    extend=lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
CHANGES = st.dictionaries(st.sampled_from([*INLINE, "sources", "name"]), VALUES, max_size=3)
INLINES = CHANGES.map(lambda change: {**INLINE, **change})


OBJECTS = st.fixed_dictionaries(
    {}, optional={**{key: VALUES for key in KEYS}, "gpu": st.one_of(st.just("h100"), INLINES, VALUES), "zzz": VALUES}
)


def gives_a_cluster_or_an_input_error(data: dict) -> None:
    try:
        cluster = cluster_from_mapping(data)
    except InputError as error:
        assert str(error) and "\n" not in str(error)
        return
    assert cluster.num_gpus >= 1 and cluster.num_nodes * cluster.gpus_per_node >= cluster.num_gpus


@settings(max_examples=300, deadline=None)
@given(data=OBJECTS)
def test_any_object_gives_a_cluster_or_an_input_error(data):
    gives_a_cluster_or_an_input_error(data)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(data=OBJECTS)
def test_soak_any_object(data):
    gives_a_cluster_or_an_input_error(data)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".json", ".toml", ""]))
def test_any_bytes_give_a_file_error_or_an_input_error(tmp_path_factory, content, suffix):
    path = write(tmp_path_factory.getbasetemp(), content, "fuzz" + suffix)
    with pytest.raises(InputError):
        load_cluster(path, 8)


@settings(max_examples=100, deadline=None)
@given(nodes=st.integers(1, 2000), per_node=st.integers(1, 64), gbit=st.floats(1, 3200), memory=st.floats(1, 79))
def test_sensible_clusters_load(nodes, per_node, gbit, memory):
    cluster = cluster_from_mapping(
        {
            "gpu": "h100",
            "num_gpus": nodes * per_node,
            "gpus_per_node": per_node,
            "nic_gbit_per_s_per_gpu": gbit,
            "memory_gib": memory,
        }
    )
    assert (cluster.num_nodes, cluster.link_domain_size) == (nodes, per_node)
    assert cluster.nic_bytes_per_s == pytest.approx(gbit * 1e9 / 8)
