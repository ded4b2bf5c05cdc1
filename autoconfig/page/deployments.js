// Deployments of a served model: the table, the plot with the limits, memory of a GPU, the time of an iteration.

import { bars, legend, planText } from "./charts.js";
import { h, replace, sortable, summaryBox, table } from "./dom.js";
import { count, fixed, gib, percent, seconds } from "./format.js";
import { deploymentPlot } from "./plots.js";
import { servingSentence } from "./sentences.js";

/** Memory of a GPU from the left of a bar to its right: the fill of each part, and its name. */
const MEMORY = [["weights", "weights"], ["gradients", "runtime"], ["temporary", "activations"], ["activations", "cache in use"],
  ["beyond", "cache that waits"]];

/** Parts of an iteration in their order, behind their fills. */
const PARTS = [["forward", "linear"], ["forward-odd", "output layer"], ["backward", "decode attention"],
  ["backward-odd", "prefill attention"], ["wait", "communication"], ["gradients", "pointwise"], ["optimizer", "experts"],
  ["temporary", "sampling"], ["idle", "launches"], ["beyond", "host"]];

/** GiB of one GPU by the names of MEMORY; the cache in use is that of the sequences that run. */
function memoryParts(one) {
  const { weights, runtime, activations, kv_pool: pool } = one.memory_gib;
  const used = pool * Math.min(1, one.users / Math.max(1, one.max_concurrency));
  return [weights, runtime, activations, used, Math.max(0, pool - used)];
}

/** What stands beside the first deployment: the other kind, drafts of the checkpoint's own layer, what wider limits give. */
function beside(answer) {
  const lines = [answer.alternative_text, answer.drafts?.text, ...answer.sensitivity].filter(Boolean);
  return lines.length ? h("ul", { class: "quiet" }, lines.map((line) => h("li", null, line))) : null;
}

/** A long trace hour by hour: rate, instances, GPUs, GPU hours. */
function hourTable(hours) {
  if (!hours?.length) return null;
  const pools = hours[0].prefill_replicas !== null;
  const head = ["from", "requests/s", "tokens in", "out", ...(pools ? ["prefill"] : []), "replicas", "GPUs", "GPU hours"];
  return h("div", { class: "scroll", tabindex: 0 }, table("Hour by hour, for the busiest quarter of each", head,
    hours.map((one) => [one.clock, one.requests_per_second.toPrecision(4), count(one.isl), count(one.osl),
      ...(pools ? [count(one.prefill_replicas)] : []), count(one.replicas), count(one.gpus), fixed(one.gpu_hours, 1)]),
    { class: "figures" }));
}

/** Memory of a GPU in each deployment of a list, against the device. */
function memoryChart(list) {
  const rows = list.map((one, index) => {
    const parts = memoryParts(one).map((value, part) => [...MEMORY[part], value]);
    const first = one.prefill_memory_gib;
    return { label: `#${index + 1}`, parts,
      lines: [one.plan, ...parts.map(([, name, value]) => `${gib(value)} GiB ${name}`), `${gib(one.memory_gib.kept_free)} GiB kept free`,
        ...(first ? [`prefill GPU: ${gib(first.weights)} weights, ${gib(first.activations)} activations, ${gib(first.kv_pool)} cache`] : []),
        ...(one.max_concurrency_longest < one.max_concurrency
          ? [`${fixed(one.memory_gib.kv_longest_sequence, 3)} GiB the longest, ${count(one.max_concurrency_longest)} at once`] : []),
        `${fixed(one.memory_gib.kv_per_sequence, 3)} GiB a sequence, ${count(one.max_concurrency)} at once in all`] };
  });
  const { device } = list[0].memory_gib;
  return h("figure", { class: "memory-of-gpus" },
    h("figcaption", null, "Memory of a GPU by deployment, GiB"),
    bars(rows, device * 1.02, `device ${gib(device)} GiB`, device, "Memory of a GPU by deployment"),
    legend(MEMORY),
    h("details", { class: "numbers" }, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0 },
      table("Memory of a GPU by part, GiB", ["GiB", ...rows.map((row) => row.label)],
        MEMORY.map(([, name], part) => [name, ...rows.map((row) => fixed(row.parts[part][2], 2))]), { class: "figures" }))));
}

/** What an iteration does one after the other: decoding alone, and with prompts. */
function stepChart(one) {
  const kinds = [["decoding", one.decode_step_seconds], [one.prefill ? "prefill, a prompt" : "with prompts", one.prompt_step_seconds]];
  const rows = kinds.map(([label, found]) => {
    const parts = PARTS.filter(([, name]) => found[name] > 0).map(([fill, name]) => [fill, name, 1e3 * found[name]]);
    const total = parts.reduce((sum, [, , value]) => sum + value, 0);
    return { label, parts, total, lines: [`${label}: ${seconds(total / 1e3)}`,
      ...parts.map(([, name, value]) => `${seconds(value / 1e3)} ${name}, ${percent(value / total)}`)] };
  });
  const used = PARTS.filter(([, name]) => rows.some((row) => row.parts.some(([, part]) => part === name)));
  return h("figure", { class: "iteration" },
    h("figcaption", null, `One iteration of ${count(one.decode.max_batch_size)} sequences, ms`),
    bars(rows, Math.max(...rows.map((row) => row.total)) * 1.02, rows.map((row) => seconds(row.total / 1e3)).join(" · "), null,
      "Timeline of an iteration"),
    legend(used),
    h("details", { class: "numbers" }, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0 },
      table("Parts of an iteration, ms", ["ms", ...rows.map((row) => row.label)],
        used.map(([, name]) => [name, ...kinds.map(([, found]) => fixed(1e3 * (found[name] || 0), 3))]), { class: "figures" }))));
}

/** A mean of tokens with its standard deviation where lengths differ. */
const tokens = (mean, spread) => count(mean) + (spread ? ` (stddev ${count(spread)})` : "");

/** The simulated latencies of a deployment: mean and percentiles. */
function latencyTable(one) {
  const found = one.simulated;
  if (!found) return null;
  const kinds = [["TTFT", found.ttft_seconds], ["TPOT", found.tpot_seconds], ["ITL", found.itl_seconds], ["E2E", found.e2e_seconds]];
  return h("figure", { class: "latencies" },
    h("figcaption", null, `Simulated, ${count(found.requests)} requests: ${percent(found.goodput_ratio)} within limits`),
    h("div", { class: "scroll", tabindex: 0 }, table("Simulated latencies", ["latency", "mean", "p50", "p90", "p95", "p99"],
      kinds.filter(([, of]) => of.mean > 0).map(([name, of]) => [name, ...["mean", "p50", "p90", "p95", "p99"].map((key) => seconds(of[key]))]), { class: "figures" })));
}

function summary(answer) {
  const { question, funnel } = answer;
  const tails = Object.entries(question.percentile_limits_seconds).map(([name, limit]) => [name.replace(/^\w{4}/, (kind) => kind.toUpperCase())
    .replace("_", " "), limit]);
  const limits = [["TTFT", question.ttft_limit_seconds], ["TPOT", question.tpot_limit_seconds], ...tails].filter(([, limit]) => limit)
    .map(([name, limit]) => `${name} at most ${seconds(limit)}`);
  const text = [question.model, `${count(question.num_gpus)} x ${question.gpu}`, question.engine,
    `${tokens(question.isl, question.isl_stddev)} tokens in, ${tokens(question.osl, question.osl_stddev)} out`,
    ...(question.isl_stddev || question.osl_stddev ? [`${count(question.longest_tokens)} at most`] : []),
    ...(question.trace ? [`trace of ${count(question.trace.requests)} requests in ${seconds(question.trace.seconds)}`] : []),
    question.requests_per_second ? `${Number(question.requests_per_second.toPrecision(4))} requests/s` : "full queue", `goal ${question.goal}`, ...limits];
  return summaryBox(text, `${count(funnel.layouts)} layouts, ${count(funnel.enumerated)} deployments, ${count(funnel.fit)} fit, ` +
    `${count(funnel.meet_limits)} meet the limits`, question.assumed);
}

/** Columns of a deployment: head, what it shows of one, and the value that, where all have it, leaves the column out. */
const size = (name) => (one) => one.decode[name];
const COLUMNS = [
  ["GPUs", (one) => one.gpus],
  ["prefill", (one) => (one.prefill ? `${one.prefill.num_replicas} x ${one.prefill.tensor_parallel_size * one.prefill.pipeline_parallel_size *
    one.prefill.attention_data_parallel_size}` : "–"), "–"],
  ["instances", size("num_replicas")], ["TP", size("tensor_parallel_size")], ["PP", size("pipeline_parallel_size"), 1],
  ["EP", size("expert_parallel_size"), 1], ["ADP", size("attention_data_parallel_size"), 1],
  ["weights", size("weight_format")], ["cache", size("kv_cache_format")], ["batch", size("max_batch_size")],
];
const FIGURES = [
  ["users", (one) => count(one.users)], ["tokens/s/GPU", (one) => count(one.tokens_per_second_per_gpu)],
  ["tokens/s/user", (one) => (one.tpot_seconds ? fixed(one.tokens_per_second_per_user, 1) : "–")],
  ["TTFT", (one) => seconds(one.ttft_seconds)], ["TPOT", (one) => (one.tpot_seconds ? seconds(one.tpot_seconds) : "–")],
  ["TTFT p99", (one) => (one.simulated ? seconds(one.simulated.ttft_seconds.p99) : "–"), "–"],
  ["within limits", (one) => (one.simulated ? percent(one.simulated.goodput_ratio) : "–"), "–"],
  ["cost/M tokens", (one) => (one.cost_per_million_tokens === null ? "–" : fixed(one.cost_per_million_tokens, 2)), "–"],
];
const ON_PHONES = ["GPUs", "tokens/s/GPU", "TTFT", "TPOT"];

/** An engine's layout in a word for each kind of parallelism that it has: 2 x TP4 PP2. */
const layout = (engine) => `${engine.num_replicas > 1 ? `${count(engine.num_replicas)} x ` : ""}` + [["TP", engine.tensor_parallel_size],
  ["PP", engine.pipeline_parallel_size], ["EP", engine.expert_parallel_size], ["ADP", engine.attention_data_parallel_size]]
  .filter(([name, size]) => name === "TP" || size > 1).map(([name, size]) => name + size).join(" ");

const kept = (columns, list) => columns.filter(([, of, usual]) => usual === undefined || list.some((one) => of(one) !== usual));

function row(one, index, columns, chosen, choose) {
  return h("tr", { class: one.plan === chosen ? "chosen" : "", "data-short": one.plan, title: one.plan, onclick: () => choose(one.plan) },
    h("td", null, h("input", { type: "radio", name: "deployment", value: one.plan, checked: one.plan === chosen,
      "aria-label": `Choose ${one.plan}`, onchange: () => choose(one.plan) })),
    h("th", { scope: "row" }, index + 1),
    columns.map(([name, of]) => h("td", { class: ON_PHONES.includes(name) ? null : "desk" }, of(one))),
    h("td", { class: "words phone" }, one.prefill ? [layout(one.prefill), ", then ", layout(one.decode)] : layout(one.decode)));
}

/** The whole answer. `chosen()` is the plan chosen, `changed(plan)` is told of another. */
export function deploymentsView(answer, chosen, changed) {
  const list = answer.deployments.length ? answer.deployments : answer.nearest ? [answer.nearest] : [];
  const all = new Map([...list, ...answer.pareto].map((one) => [one.plan, one]));
  const box = h("div", { class: "deployments" });
  const order = { column: null, up: true };
  const draw = () => {
    const plan = all.has(chosen()) ? chosen() : list.length ? list[0].plan : null;
    const choose = (other) => {
      if (other === plan) return;
      changed(other);
      draw();
      box.querySelector(`input[value="${CSS.escape(other)}"]`)?.focus();
    };
    const columns = kept([...COLUMNS, ...FIGURES], list);
    replace(box, h("p", { class: answer.miss ? "headline bad" : "headline" }, servingSentence(answer)), summary(answer),
      answer.miss ? h("p", { class: "note bad" }, answer.miss) : null,
      list.length ? [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ranked deployments" },
        sortable(h("table", { class: "plans" }, h("caption", null, answer.miss ? "Nearest deployment" : `${list.length} best layouts`),
          h("thead", null, h("tr", null, h("td", null, h("span", { class: "unseen" }, "chosen")), h("th", { scope: "col" }, "#"),
            columns.map(([name]) => h("th", { scope: "col", class: ON_PHONES.includes(name) ? null : "desk" }, name)),
            h("th", { scope: "col", class: "words phone" }, "layout"))),
          h("tbody", null, list.map((one, index) => row(one, index, columns, plan, choose)))), order)),
      list[0].tpot_seconds ? deploymentPlot(answer, [...all.values()], plan, choose) : null] : null,
      answer.why.length ? h("ul", { class: "quiet why" }, answer.why.map((line) => h("li", null, `#1: ${line}`))) : null,
      beside(answer),
      hourTable(answer.hours),
      plan ? h("section", { class: "detail", "aria-label": "Chosen deployment" }, h("article", null,
        h("header", null, h("h2", null, planText(plan))),
        h("div", { class: "columns even" }, memoryChart(list.some((one) => one.plan === plan) ? list : [all.get(plan)]),
          stepChart(all.get(plan))), latencyTable(all.get(plan)))) : null);
  };
  draw();
  return box;
}
