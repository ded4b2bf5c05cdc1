"""Serving answers on the screen, deployments and starts of engines: rich tables, no arithmetic beyond units."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from autoconfig.engines.check import UNKNOWN, StartAnswer
from autoconfig.engines.flags import NAMES
from autoconfig.engines.load import LoadAnswer
from autoconfig.memory_model.serving import ServingMemory
from autoconfig.render.blocks import NO, START, labelled
from autoconfig.render.screen import brief, show_assumptions, show_table
from autoconfig.render.start_json import weights_text
from autoconfig.serving.answer import ServeAnswer
from autoconfig.serving.closed_loop import EdgeRange, bands_text, edge_text, milliseconds
from autoconfig.serving.deployment import BEYOND, DeploymentReport
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.reasons import keeps_limits, limits_of, rate_text
from autoconfig.specs.engines.start import MemoryPart
from autoconfig.specs.errors import GIB
from autoconfig.specs.remarks import sentences
from autoconfig.time_model.serving.workload import Trace


def show_answer(console: Console, answer: ServeAnswer) -> None:
    """The whole answer of `deployments`."""
    q, d = answer.question, answer.deployments
    limits = [f"{name} <= {milliseconds(limit)}" for _, _, name, limit in limits_of(q)]
    asked = ", ".join([load_text(q), f"goal {q.goal}", *limits])
    bands = bands_text(q.calibration.constants(q.engine, q.gpu))
    console.print(f"{q.model.name} on {q.num_gpus} {q.gpu.name}, {asked}{bands and f' ({bands})'}")
    if borrowed := q.calibration.borrowed_by(q.engine):
        console.print(f"[bold]{q.engine.name} has no constants of its own:[/bold] {borrowed}'s, under {q.engine.name}'s limits")
    if q.tails:
        console.print("TTFT and TPOT in tables are means in closed form; percentiles are judged in the simulation", style="dim")
    if answer.reports:
        _show_deployments(console, "Best deployment of each layout", q, answer.reports)
        _show_first(console, answer)
    else:
        console.print(f"[bold]{escape(answer.infeasible)}[/bold]")
        if answer.nearest:
            _show_deployments(console, "Nearest", q, [answer.nearest])
            show_latency(console, answer.nearest, q)
    if answer.hours:
        _show_hours(console, answer)
    if answer.pareto:
        title = "Pareto frontier: speed of a user against throughput of a GPU"
        _show_deployments(console, title, q, answer.pareto)
    for text, found, why in answer.included:
        if found is None:
            console.print(f"--include {escape(text)}: {escape(why)}")
        else:
            _show_deployments(console, f"--include {text}", q, [found])
            _show_benchmark(console, found)
            show_latency(console, found, q)
    console.print(
        f"{len(d.layouts):,} layouts, {d.enumerated:,} deployments enumerated -> {d.fit:,} fit -> "
        f"{len(d.order):,} meet the limits{_judged(answer)}, priced in {d.seconds:.2f} s"
    )
    show_assumptions(console, q.assumed)


def _judged(answer: ServeAnswer) -> str:
    """Of those that meet the limits in closed form, how many were simulated, and of these how many meet them there."""
    if not answer.simulated or not any(limits_of(answer.question)):
        return ""
    held = sum(keeps_limits(answer.question, one) for one in answer.simulated)
    return f" in closed form, {held} of {len(answer.simulated)} tried in the simulation"


def load_text(question: ServeQuestion) -> str:
    """Lengths, with standard deviation and the longest where they differ, and arrivals."""
    work = question.workload
    words = []
    for mean, stddev, name in ((work.isl, work.isl_stddev, "tokens in"), (work.osl, work.osl_stddev, "out")):
        words.append(f"{mean:,.0f}{f' (stddev {stddev:,.0f})' if stddev else ''} {name}")
    if work.isl_stddev or work.osl_stddev:
        words.append(f"{work.longest_tokens:,.0f} at most")
    if isinstance(work, Trace):
        day = question.day
        words.append(
            f"the busiest part, {day.window.clock}, of a trace of {day.requests:,} requests in {day.seconds:,.0f} s: "
            f"{len(work.arrival_s):,} requests"
            if day is not None and day.window
            else f"trace of {len(work.arrival_s):,} requests in {work.arrival_s[-1]:,.0f} s"
        )
    return ", ".join([*words, rate_text(question.rate) if question.rate else "full queue"])


COST = "cost/M"
"""Money for a million output tokens, at --price."""
OVER = "!"
"""Behind a time over its limit."""


def _show_deployments(console: Console, title: str, question: ServeQuestion, reports: Sequence[DeploymentReport]) -> None:
    rows = [
        [
            str(number),
            str(one.gpus),
            f"{one.concurrency:,}",
            f"{one.tokens_per_s_per_gpu:,.0f}",
            f"{one.tokens_per_s_per_user:,.1f}" if one.tpot_s else "-",
            _limited(question, one, "ttft", one.ttft_s),
            _limited(question, one, "tpot", one.tpot_s) if one.tpot_s else "-",
            room_text(one.max_concurrency / max(one.concurrency, 1)),
            *([f"{one.cost_per_million_tokens:.3g}"] if one.cost_per_million_tokens is not None else []),
            str(one.plan),
        ]
        for number, one in enumerate(reports, 1)
    ]
    cost = (COST,) * bool(question.price)
    names = ("#", "GPUs", "users", "tok/s/GPU", "tok/s/user", "TTFT", "TPOT", "KV room", *cost, "deployment")
    show_table(console, names, rows, left=("deployment",), below=("deployment",), title=title)
    if any(OVER in row[5] + row[6] for row in rows):
        there = ", a percentile in the simulation" * bool(question.tails)
        console.print(f"{OVER} over the limit that was asked for{there}", style="dim")


def _show_hours(console: Console, answer: ServeAnswer) -> None:
    """A trace hour by hour: what of the recommended deployment carries it."""
    hours, best = answer.hours, answer.reports[0]
    pools = best.plan.prefill is not None
    rows = [
        [
            one.clock,
            f"{one.rate:,.4g}",
            f"{one.isl:,.0f}",
            f"{one.osl:,.0f}",
            *([f"{one.prefill_replicas:,}"] if one.prefill_replicas is not None else []),
            f"{one.replicas:,}",
            f"{one.gpus:,}",
            f"{one.gpu_hours:,.1f}",
        ]
        for one in hours
    ]
    names = ("from", "requests/s", "tokens in", "out", *(("prefill",) * pools), "replicas", "GPUs", "GPU hours")
    title = "Hour by hour: instances of the recommended deployment for the busiest quarter of each, in closed form"
    show_table(console, names, rows, title=title)
    together, always = sum(one.gpu_hours for one in hours), sum(best.gpus * one.seconds / 3600.0 for one in hours)
    console.print(
        f"{together:,.1f} GPU hours where instances come and go by the hour; all {best.gpus} GPUs all the time: {always:,.1f}"
    )


MOST_ROOM = 99.5
"""From which on how often the users' sequences would fit says nothing more."""


def room_text(times: float) -> str:
    """How often memory would hold the sequences of all users: 1.2x, 57x, over 99x."""
    return f"{times:.1f}x" if times < 9.95 else f"{times:.0f}x" if times < MOST_ROOM else ">99x"


def _limited(question: ServeQuestion, one: DeploymentReport, kind: str, mean: float) -> str:
    """The closed form's mean of `ttft` or `tpot`, marked where it is over its limit or a simulated percentile over its own; of
    a deployment that was not simulated, where already the mean is over that."""
    over = False
    for of, figure, _, limit in limits_of(question):
        simulated = None if figure == "mean" or one.latency is None else getattr(one.latency, f"{kind}_seconds")
        over |= of == kind and (mean if simulated is None else getattr(simulated, figure)) > limit
    return milliseconds(mean) + (f" {OVER}" if over else "")


def _show_first(console: Console, answer: ServeAnswer) -> None:
    best = answer.reports[0]
    console.print(f"Recommended: [bold]{escape(str(best.plan))}[/bold]")
    for line in answer.why:
        console.print(f"  {escape(line)}")
    if best.cost_per_million_tokens is not None:
        console.print(f"  cost {best.cost_per_million_tokens:.3g} per million output tokens, as --price ({COST})")
    if best.joules_per_token is not None and getattr(console, "verbose", False):
        million = f"{best.kwh_per_million_tokens:,.3g} kWh a million (GPUs at their power limit)"
        console.print(f"  at most {best.joules_per_token:,.3g} J an output token, {million}")
    if len(answer.reports) > 1:
        other = answer.reports[1]
        user = f", {other.tokens_per_s_per_user / best.tokens_per_s_per_user - 1:+.1%} tokens/s/user" if best.tpot_s else ""
        console.print(
            f"  runner-up {escape(str(other.plan))}: "
            f"{other.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1:+.1%} tokens/s/GPU{user}",
        )
    for line in filter(None, (answer.alternative_text, answer.drafts.text if answer.drafts else "")):
        console.print(f"  {escape(line)}")
    for line in answer.sensitivity:
        console.print(f"  {escape(line)}")
    _show_benchmark(console, best)
    show_parts(console, best)
    for one in answer.reports:
        if one.latency:
            show_latency(console, one, answer.question)


def _show_benchmark(console: Console, one: DeploymentReport) -> None:
    """Of the deployment's users, beside the steady state of the table."""
    found = one.benchmark
    if found is None:
        return
    console.print(
        f"  a benchmark of {found.users:,} users, all at once ({found.requests:,} requests, lengths from {found.range_ratio:g} "
        f"of these on): TTFT {milliseconds(found.ttft_seconds)}, TPOT {milliseconds(found.tpot_seconds)}, "
        f"{found.tokens_per_second_per_gpu:,.0f} tok/s/GPU; users spread in time: TTFT {milliseconds(one.ttft_s)}"
    )
    edge = None
    if found.ttft_range_seconds and found.tpot_range_seconds:
        edge = EdgeRange(ttft_s=found.ttft_range_seconds, tpot_s=found.tpot_range_seconds)
    if said := edge_text(found.cache_load, edge):
        console.print(f"  {said}")


APART = 1.5
"""Factor between the TTFT of the closed form and the simulated mean from which on the answer says why."""
CLOSED_FORM = "it knows no bursts and no waiting for a full cache; plan with the simulated one"


def show_latency(console: Console, one: DeploymentReport, question: ServeQuestion) -> None:
    """A simulated deployment: mean and percentiles."""
    found = one.latency
    if found is None:
        return
    counted = f"{found.requests:,} requests, {found.tokens_per_second_per_gpu:,.0f} tok/s/GPU"
    good = f", {found.goodput_ratio:.0%} within limits" if any(limits_of(question)) else ""
    console.print(f"  simulated {escape(str(one.plan))}: {counted}{good}")
    for name in ("TTFT", "TPOT", "ITL", "E2E"):
        if name in ("TPOT", "ITL") and not one.tpot_s:
            continue
        seconds: dict[str, float] = vars(getattr(found, f"{name.lower()}_seconds"))
        figures = "  ".join(f"{key} {milliseconds(value)}" for key, value in seconds.items())
        console.print(f"    {name:<4} {figures}")
    if found.ttft_range_seconds and found.tpot_range_seconds:
        edge = EdgeRange(ttft_s=found.ttft_range_seconds, tpot_s=found.tpot_range_seconds)
        console.print(f"    a range: the rate is about the most that it takes, and a tenth less or more gives {edge.text}")
    for _, figure, name, _ in limits_of(question):
        if figure != "mean" and (beyond := found.requests * (100 - int(figure[1:])) // 100) < BEYOND:
            console.print(f"    {name} rests on the {max(beyond, 1)} slowest of {found.requests:,} requests")
    if said := closed_form_text(one):
        console.print(f"    {said}")


def closed_form_text(one: DeploymentReport) -> str:
    """Why the table's TTFT is another than the simulated one; empty where they are near each other."""
    if one.latency is None or 1 / APART < one.ttft_s / one.latency.ttft_seconds.mean < APART:
        return ""
    return f"the table's TTFT, {milliseconds(one.ttft_s)}, is a closed form's: {CLOSED_FORM}"


def show_parts(console: Console, one: DeploymentReport) -> None:
    """Memory of a GPU and a decode step, by part."""
    m = one.memory
    longest = f"; of the longest {one.longest_bytes / GIB:.3f}: {one.max_concurrency_longest:,}" if one.varies else ""
    each = float(m.kv_bytes_per_sequence) / GIB
    pieces = [f"{name} {size / GIB:.1f}" for name, size in one.weight_parts.items() if size > 0.05 * GIB]
    console.print(
        memory_text("memory of a GPU", m, f"{each:.3f} a sequence: {one.max_concurrency:,} at once in all{longest}", pieces),
    )
    if one.prefill_memory is not None:
        prompt = f"{float(one.prefill_memory.kv_bytes_per_sequence) / GIB:.3f} a prompt"
        console.print(memory_text("memory of a prefill GPU", one.prefill_memory, prompt))
    total = sum(one.step_parts.values())
    steps = [f"{name} {s * 1e3:.2f}" for name, s in one.step_parts.items() if s > 0.002 * total]
    console.print(f"  decode step {total * 1e3:.2f} ms = {' + '.join(steps)}")


def memory_text(name: str, m: ServingMemory, cache: str, pieces: Sequence[str] = ()) -> str:
    """A GPU's memory as a sum of its parts; `cache` says more of the pool, `pieces` of the weights."""
    device, weights, active, runtime, pool, free = (
        float(x) / GIB
        for x in (m.device_bytes, m.weights_bytes, m.activation_bytes, m.runtime_bytes, m.kv_pool_bytes, m.kept_free_bytes)
    )
    inside = f" ({', '.join(pieces)})" if pieces else ""
    return (
        f"  {name}: {device:.1f} GiB = weights {weights:.1f}{inside}, "
        f"activations {active:.1f}, runtime {runtime:.1f}, KV cache {pool:.1f} ({cache}), kept free {free:.1f}"
    )


LENGTHS = {"vllm": "--max-model-len", "sglang": "--context-length", "tensorrt-llm": "--max_seq_len"}
SEQUENCES = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "tensorrt-llm": "--max_batch_size"}
SHARES = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static", "tensorrt-llm": "--free_gpu_memory_fraction"}
STYLES = {"yes": "bold green", "no": "bold red", "uncertain": "bold yellow"}
LABELS = {"yes": START, "no": NO, "uncertain": "[bold yellow]START?[/bold yellow]"}
VERDICTS = {"yes": "Starts.", "no": "Does not start.", "uncertain": "May start or not."}
BINDS = {"seqs": "number of sequences", "pool": "size of the cache", "states": "number of state blocks"}


def show_start(console: Console, answer: StartAnswer) -> None:
    """Starts or not, memory by part, tokens of the cache, the load and the better start."""
    start, read, memory = answer.start, answer.read, answer.memory
    said = f" ({escape(read.release_source)})" if read.release else ""
    release = f"{NAMES[read.engine]} {answer.release}".strip() + said
    where = f"{start.gpus} x {start.gpu.name}"
    console.print(f"{release}, {escape(answer.filled.model_name)} on {where}")
    verdict = f"[{STYLES[answer.starts]}]{VERDICTS[answer.starts]}[/{STYLES[answer.starts]}]"
    behind = _behind(answer.load)
    labelled(
        console,
        NO if behind and answer.starts == "yes" else LABELS[answer.starts],
        f"{verdict} {escape(answer.why)}{behind}".rstrip(),
    )
    console.print(f"Plan [bold]{escape(_plan_text(answer))}[/bold]; weights: {escape(weights_text(answer))}")
    if unsaid := [text for text in answer.unknown if text not in answer.why]:
        console.print(f"[yellow]{UNKNOWN}[/yellow] {escape('; '.join(unsaid))}")
    if memory is not None:
        _show_parts_of_start(console, memory.parts, start.gpu.memory_bytes / GIB)
        _show_cache(console, answer)
    if answer.changes:
        console.print(f"Each of these alone would start: [bold]{escape('; '.join(answer.changes))}[/bold]")
    if answer.load is not None:
        _show_load(console, answer.load)
    for text in sentences(answer.not_modelled):
        console.print(f"[yellow]Not modelled:[/yellow] {escape(text)}")
    brief(console, "Other servers in the file", read.others)
    brief(console, "From the file", read.notes)
    brief(console, f"Settings without effect on the answer ({len(answer.ignored)})", answer.ignored)
    show_assumptions(console, answer.assumed)


CARRIED = 0.9
"""Share of the tokens asked for each second below which a load is not carried: in the first and last requests of a benchmark
the server is not full."""


def _behind(load: LoadAnswer | None) -> str:
    """What is said of a load that grows a queue; empty where the server carries it, and where users wait for their answers."""
    if load is None or not load.rate or load.tokens_per_s is None or load.tokens_per_s >= CARRIED * load.rate * load.osl:
        return ""
    return f"Does not carry {load.rate:g} requests/s: {load.tokens_per_s / load.osl:.3g} are answered."


def _show_parts_of_start(console: Console, parts: Sequence[MemoryPart], device_gib: float) -> None:
    """A line a part; the weights in one line and sources as far as a line goes, unless all is asked for."""
    total = ["together", f"{sum(part.gib for part in parts):,.2f}", f"of {device_gib:,.2f} GiB"]
    columns, left = ["memory of a GPU", "GiB", "from"], ("memory of a GPU", "from")
    if getattr(console, "verbose", False):
        rows = [[part.name, f"{part.gib:,.2f}", part.source] for part in parts]
        show_table(console, columns, [*rows, total], left=left, below=("from",))
        return
    held = sorted((part for part in parts if part.name.startswith(WEIGHTS)), key=lambda part: -part.gib)
    named = ", ".join(f"{part.name.removeprefix(WEIGHTS)} {part.gib:,.1f}" for part in held if part.gib >= 0.05)
    others = [part for part in parts if part not in held]
    rows = [["weights", f"{sum(part.gib for part in held):,.2f}", named]] * bool(held)
    rows += [[part.name, f"{part.gib:,.2f}", part.source] for part in others]
    rows.append([*total[:2], f"{total[2]} (sources: --verbose)"])
    room = console.width - sum(max(len(row[place]) for row in (columns, *rows)) + 2 for place in (0, 1)) - 3
    show_table(console, columns, [[*row[:2], short_source(row[2], room)] for row in rows], left=left, below=("from",))


WEIGHTS = "weights: "


def short_source(source: str, room: int) -> str:
    """What a source says before it names a file, in `room` characters; the first piece is cut where it alone is longer."""
    first, *pieces = re.split(r"(?<=[:;,]) ", source)
    for piece in pieces:
        if "/" in piece or len(f"{first} {piece.rstrip(':;,')}") > room:
            break
        first = f"{first} {piece}"
    first = first.rstrip(":;,")
    return first if len(first) <= room else f"{first[: max(room - 3, 0)].rstrip()}..."


def _plan_text(answer: StartAnswer) -> str:
    start = answer.start
    parts = [("tp", start.tp), ("pp", start.pp), ("dp", start.dp), ("ep", start.ep)]
    shown = [f"{name}={value}" for name, value in parts if value > 1 or name == "tp"]
    return ", ".join([*shown, *(["attention data parallelism"] if start.attention_dp and start.dp > 1 else [])])


def _show_cache(console: Console, answer: StartAnswer) -> None:
    memory, engine = answer.memory, answer.read.engine
    if memory is None:
        return
    many = answer.start.attention_ranks > 1
    ranks = f" in {answer.start.attention_ranks} ranks" if many else ""
    of = "" if memory.block_size == 1 else f"; {max(memory.blocks, 0):,} blocks of {memory.block_size} tokens{' a rank' * many}"
    groups = f"; groups: {escape(', '.join(memory.groups))}" if memory.groups else ""
    console.print(f"KV cache: [bold]{memory.kv_tokens:,} tokens[/bold]{ranks}{of}{groups}")
    console.print(
        f"A sequence of {memory.max_model_len:,} tokens takes {memory.sequence_gib:.2f} GiB: {memory.max_concurrency:,.2f} at "
        f"once; {SEQUENCES[engine]} {memory.max_num_seqs:,}{' a rank' if many else ''}. What binds: the {BINDS[memory.binds]}."
    )
    longest = f"{memory.longest_max_model_len:,}" if memory.longest_max_model_len else "none"
    least = f"; smallest {SHARES[engine]}: {memory.least_fraction:g}" if memory.least_fraction else ""
    console.print(f"Longest {LENGTHS[engine]}: {longest}{least}")


def _show_load(console: Console, load: LoadAnswer) -> None:
    asked = f"{load.concurrency:,} users" if load.concurrency else f"{load.rate:g} requests/s"
    head = f"At {load.isl:,.0f} + {load.osl:,.0f} tokens, {asked}:"
    if load.ttft_ms is None or load.tpot_ms is None or load.tokens_per_s is None:
        console.print(f"{head} [yellow]{escape(load.note)}[/yellow]")
        return
    first, between = f"{load.ttft_ms:,.0f}", f"{load.tpot_ms:,.1f}"
    if load.ttft_range_ms and load.tpot_range_ms:
        first = " to ".join(f"{one:,.0f}" for one in load.ttft_range_ms)
        between = " to ".join(f"{one:,.1f}" for one in load.tpot_range_ms)
    console.print(
        f"{head} TTFT [bold]{first} ms[/bold], TPOT [bold]{between} ms[/bold], {load.tokens_per_s:,.0f} output tokens/s"
    )
    for name, tails in load.percentiles.items():
        shown = ", ".join(
            f"{point} {value:,.0f}" if value >= 100 else f"{point} {value:,.1f}" for point, value in tails.items()
        )
        console.print(f"  {'TTFT' if name == 'ttft_ms' else 'TPOT'} in ms: {shown}")
    if load.note:
        console.print(f"  {escape(load.note)}", style="dim")
    _show_better(console, load)


def _show_better(console: Console, load: LoadAnswer) -> None:
    """The better start with its diff, or the flags that change, and what else does more."""
    better = load.better
    if better is None:
        console.print("  No other layout of these GPUs and no other flag does more at this load.")
    else:
        console.print(
            f"Better: TTFT {better.ttft_ms:,.0f} ms, TPOT {better.tpot_ms:,.1f} ms, {better.tokens_per_s:,.0f} output "
            f"tokens/s, {better.kv_tokens:,} tokens of cache, by"
        )
        for flag, old, new in better.changes if not better.diff else ():
            change = (
                f"- {flag} {old}" if not new else f"+ {flag} {new}" if not old else f"  {flag} {old} -> {new}"
            ).removesuffix(" on")
            console.print(f"  {escape(change)}")
        for line in better.diff:
            console.print(Text(f"  {line}", "green" if line.startswith("+") else "red"), soft_wrap=True)
    said = [
        f"{hint.change}: TTFT {hint.ttft_ms:,.0f} ms, TPOT {hint.tpot_ms:,.1f} ms, {hint.tokens_per_s:,.0f} tokens/s "
        f"({hint.why})"
        for hint in load.hints
    ]
    brief(console, "Would do more still" if better else "Would do more", said)
