// The views that the page of the service and a report share: the answer, its plans, a chosen plan, a comparison.

import { memoryChart, planText, timeChart, timeOrder } from "./charts.js";
import { copyButton, download, h, replace, sortable, summaryBox, table } from "./dom.js";
import { chance, count, days, gib, large, partName, percent, plainSeconds, seconds } from "./format.js";
import { paretoPlot } from "./plots.js";
import { trainingSentence } from "./sentences.js";
import { timelineChart } from "./timeline.js";

/** What was asked, in a line, and everything that was assumed. */
export function summary(answer) {
  const { model, cluster, workload, numerics, funnel } = answer;
  const text = [`${model.name}, ${large(model.parameters)} parameters`, `${count(cluster.num_gpus)} x ${cluster.gpu}`,
    `sequence ${count(workload.seq_length)}`, `batch ${count(workload.global_batch_size)}`, numerics.precision, answer.software];
  return summaryBox(text, `${count(funnel.legal)} legal layouts, ${count(funnel.fit)} fit, ${count(funnel.priced)} plans priced; ` +
    `by formula, calibration ${answer.calibration}`, answer.assumed);
}

/** Columns of a plan: head, Megatron's name, and the value that, where all plans have it, leaves the column out. */
const COLUMNS = [
  ["TP", "tensor_model_parallel_size"], ["PP", "pipeline_model_parallel_size"],
  ["VPP", "virtual_pipeline_model_parallel_size", 1], ["CP", "context_parallel_size", 1],
  ["EP", "expert_model_parallel_size", 1], ["ETP", "expert_tensor_parallel_size", 1], ["DP", "data_parallel_size"],
  ["MBS", "micro_batch_size"], ["SP", "sequence_parallel"], ["first", "decoder_first_pipeline_num_layers", null],
  ["last", "decoder_last_pipeline_num_layers", null], ["dist. opt.", "use_distributed_optimizer", true], ["FSDP", "fsdp", 0],
  ["offload", "optimizer_offload_fraction", 0],
];

const cell = (value) => value === true ? "on" : value === false ? "off" : value === null ? "–" : String(value);

/** Sentences of an answer with its parts under their plain names. */
const readable = (text) => text.replace(/\b[a-z0-9_]+_seconds\b/g, partName);

export class Workbench {
  /** `source(short)` gives {detail, timeline, files, problem} of a plan; `changed()` is told when the choice changes; `use(options)`
   * changes the question, where there is one to change. */
  constructor(source, changed, use) {
    this.source = source;
    this.changed = changed;
    this.use = use || null;
    this.order = { column: null, up: true };
    this.answer = null;
    this.plan = null;
    this.compared = null;
    this.turn = 0;
    this.head = h("div", { class: "answer" });
    this.detail = h("section", { class: "detail", "aria-label": "Chosen plan", "aria-live": "off" });
    this.element = h("div", { class: "workbench" }, this.head, this.detail);
  }

  /** Shows an answer. A plan that was chosen before and is not in it stays chosen: it is explained under the new question. */
  show(answer, plan, compared) {
    this.answer = answer;
    const first = answer.plans[0] || answer.nearest_miss;
    this.plan = plan || (first ? first.short : null);
    this.compared = compared || null;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.focus : null;
    replace(this.head, h("p", { class: answer.plans.length ? "headline" : "headline bad" }, trainingSentence(answer),
      answer.plans.length ? [" ", planText(answer.plans[0].short)] : null), summary(answer), answer.plans.length ? this.ranked() : nothingFits(answer, this.use));
    if (focused) this.head.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
    return this.explain();
  }

  choose(short) {
    if (short === this.plan) return;
    if (short === this.compared) this.compared = null;
    this.plan = short;
    this.mark();
    this.changed();
    this.explain();
  }

  compare(short) {
    this.compared = this.compared === short || short === this.plan ? null : short;
    this.mark();
    this.changed();
    this.explain();
  }

  /** Brings marks of the chosen plan up to date where they are, so that the focus stays. */
  mark() {
    for (const element of this.head.querySelectorAll("[data-short]")) {
      const chosen = element.dataset.short === this.plan;
      element.classList.toggle("chosen", chosen);
      if (element.matches("g")) element[chosen ? "setAttribute" : "removeAttribute"]("aria-current", "true");
      const radio = element.querySelector("input[type=radio]");
      if (radio) radio.checked = chosen;
      const versus = element.querySelector("button");
      if (versus) {
        versus.setAttribute("aria-pressed", String(element.dataset.short === this.compared));
        versus.disabled = chosen;
      }
    }
  }

  ranked() {
    const { plans } = this.answer;
    const extra = [["days", "days_to_train"], ["cost", "cost"]].filter(([, key]) => plans.some((plan) => plan[key] !== null));
    const keys = COLUMNS.filter(([, key, usual]) => usual === undefined || plans.some((plan) => plan.plan[key] !== usual));
    const first = plans.filter((plan) => plan.tie_group === 1).length;
    const tied = first === plans.length || first < 2 ? "" : `; a line parts plans that the model can tell apart`;
    return [anotherBatch(this.answer.other_batch, this.use), h("div", { class: "columns" },
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ranked plans" },
        sortable(h("table", { class: "plans" },
          h("caption", null, `${count(plans.length)} best layouts`, h("span", { class: "quiet" },
            first === plans.length && first > 1 ? "; too close for the model to tell apart" : tied)),
          h("thead", null, h("tr", null, h("td", null, h("span", { class: "unseen" }, "chosen")), h("th", { scope: "col" }, "#"),
            keys.map(([name, key]) => h("th", { scope: "col", title: key, class: "desk" }, name)),
            h("th", { scope: "col", class: "words desk" }, "recompute"),
            ["step, s", "MFU", "memory, GiB", "fits", ...extra.map(([name]) => name), "compare"].map((name) =>
              h("th", { scope: "col", class: ["MFU", "compare"].includes(name) ? "desk" : null }, name)),
            h("th", { scope: "col", class: "words phone" }, "plan"))),
          h("tbody", null, plans.map((plan, index) => this.row(plan, index, keys, extra)))), this.order)),
      paretoPlot(this.answer, () => this.plan, (short) => this.choose(short)))];
  }

  row(plan, index, keys, extra) {
    const { peak_gib: peak, limit_gib: limit, device_gib: device } = plan.memory;
    const before = this.answer.plans[index - 1];
    const level = h("i", { class: "level" });
    level.style.width = `${(100 * peak) / device}%`;
    const chosen = plan.short === this.plan;
    const radio = h("input", { type: "radio", name: "plan", value: plan.short, checked: chosen, "aria-label": `Choose ${plan.short}`,
      "data-focus": `row-${index}`, onchange: () => this.choose(plan.short) });
    const versus = h("button", { type: "button", class: "small", "aria-pressed": String(plan.short === this.compared),
      "aria-label": `Compare with ${plan.short}`, disabled: chosen, onclick: (event) => {
        event.stopPropagation();
        this.compare(plan.short);
      } }, "vs");
    const { step_seconds_p5: low, step_seconds_p95: high, fit_probability: fit } = plan.confidence;
    return h("tr", { class: `${chosen ? "chosen" : ""}${before && before.tie_group !== plan.tie_group ? " group" : ""}`,
      "data-short": plan.short, title: `${plan.short}\n${readable(plan.why)}`, onclick: () => this.choose(plan.short) },
    h("td", null, radio), h("th", { scope: "row" }, plan.rank),
    keys.map(([, key]) => h("td", { class: "desk" }, cell(plan.plan[key]))),
    h("td", { class: "words recompute desk" }, plan.short.match(/recompute=([^,]*)/)[1].split(/(?<=[:+])/).map((word) => [word, h("wbr")])),
    h("td", { title: `5 to 95 %: ${plainSeconds(low)} to ${plainSeconds(high)}` }, plainSeconds(plan.step_seconds)),
    h("td", { class: "desk" }, percent(plan.mfu, 1)),
    h("td", { class: "memory", title: `${gib(peak)} of ${gib(limit)} GiB` }, h("span", { class: "gauge" }, level), gib(peak)),
    h("td", { class: fit < 0.5 ? "bad" : fit < 0.95 ? "warn" : "good" }, chance(fit)),
    extra.map(([, key]) => h("td", null, plan[key] === null ? "" : key === "cost" ? count(plan.cost) : days(plan[key]))),
    h("td", { class: "desk" }, versus),
    h("td", { class: "words phone" }, planText(plan.short)));
  }

  /** Asks for everything about the chosen plan, and the one beside it, and shows it when the last asked has come. */
  async explain() {
    const turn = ++this.turn;
    const wanted = [this.plan, this.compared].filter(Boolean);
    if (!wanted.length) {
      replace(this.detail);
      return;
    }
    this.detail.setAttribute("aria-busy", "true");
    const found = await Promise.all(wanted.map((short) => this.source(short).catch((problem) => ({ problem, short }))));
    if (turn !== this.turn) return;
    this.detail.removeAttribute("aria-busy");
    const known = found.filter((one) => one.detail && one.detail.legal);
    const scales = known.length ? { ...timeOrder(known.map((one) => one.detail)),
      memory: Math.max(...known.map((one) => one.detail.memory.peak_gib)) } : null;
    replace(this.detail,
      known.length === 2 ? comparison(known.map((one) => one.detail)) : null,
      h("div", { class: `details-of plans-${found.length}` }, found.map((one, index) => onePlan(one, wanted[index], scales, this))));
  }
}

/** Options in a sentence, "(--gpus 24)" or "try --gpus 24" as [["gpus", "24"]]. */
export const optionsOf = (line) => ((/(?:\(|try )(--[^);]*)/.exec(line) || ["", ""])[1].match(/--\S+ \S+/g) || []).map((part) => {
  const [name, value] = part.slice(2).split(" ");
  return [name.replaceAll("-", "_"), value];
});

/** The nearest miss, a button for each change with which it fits, and the changes that alone do not. */
function nothingFits(answer, use) {
  const miss = answer.nearest_miss;
  const tried = miss ? miss.try : [];
  const enough = tried.filter((line, at) => miss.try_fits[at]);
  const changes = (line) => optionsOf(`(${miss.try_options[tried.indexOf(line)]})`);
  const plain = (line) => line.replace(/ \(--[^)]*\)/, "");
  const none = answer.nothing_legal;
  if (none) {
    const near = [...none.global_batch_sizes.map((size) => ["global_batch_size", String(size)]), ...none.num_gpus.map((gpus) => ["gpus", String(gpus)])];
    return h("div", { class: "note" }, h("p", null, h("strong", null, "No plan is legal. "), none.why, "."),
      use && near.length ? h("p", null, near.map(([name, value]) => [h("button", { type: "button", class: "small", onclick: () => use([[name, value]]) },
        `use ${name} ${value}`), " "])) : null);
  }
  const list = (title, lines, button) => (lines.length ? [h("p", null, title), h("ul", null, lines.map((line) =>
    h("li", null, plain(line), button && use ? [" ", h("button", { type: "button", class: "small", onclick: () => use(changes(line)) },
      `use ${changes(line).map((pair) => pair.join(" ")).join(", ")}`)] : null)))] : null);
  return h("div", { class: "note" },
    h("p", null, h("strong", null, "Nothing fits in memory. "), miss ? `The nearest plan lacks ${gib(miss.shortfall_gib)} GiB.` : ""),
    list("What makes it fit:", enough, true), list("Not enough alone:", tried.filter((line) => !enough.includes(line)), false));
}

/** A batch with which these GPUs do more. */
function anotherBatch(other, use) {
  if (!other) return null;
  const more = other.gain === null ? "has a plan" : `${percent(other.gain)} more`;
  return h("p", { class: "note" }, `A batch of ${count(other.global_batch_size)}: ${count(other.tokens_per_second_per_gpu)} tokens/s/GPU, ${more}. `,
    use ? h("button", { type: "button", class: "small", onclick: () => use([["global_batch_size", String(other.global_batch_size)]]) },
      `use batch ${other.global_batch_size}`) : null);
}

function onePlan(one, short, scales, bench) {
  const known = bench.answer.plans.find((plan) => plan.short === short);
  const head = h("header", null, h("h2", null, planText(short)), copyButton("Copy plan", short));
  if (!one.detail) return h("article", null, head, h("p", { class: "note bad" }, one.problem ? one.problem.message : "no answer"));
  const { detail } = one;
  if (!detail.legal) {
    return h("article", null, head, h("div", { class: "note" },
      h("p", null, "This plan is not legal here:"),
      h("ul", null, detail.rejected_by.map((rule) => h("li", null, `${rule.rule}: ${rule.text}`))),
      detail.nearest_legal ? h("p", null, "The nearest legal plan: ", h("button", { type: "button",
        onclick: () => bench.choose(detail.nearest_legal) }, detail.nearest_legal)) : null));
  }
  return h("article", null, head, facts(detail),
    known ? h("p", { class: "quiet" }, readable(known.why)) : null,
    h("div", { class: "columns even" }, memoryChart(detail, scales.memory), timeChart(detail, scales.order, scales.most)),
    one.timeline ? timelineChart(one.timeline, detail) : null,
    config(one));
}

function facts(detail) {
  const { confidence, memory } = detail;
  const rows = [
    ["step", `${seconds(detail.step_seconds)} (${plainSeconds(confidence.step_seconds_p5)}–${plainSeconds(confidence.step_seconds_p95)})`],
    ["tokens/s/GPU", count(detail.tokens_per_second_per_gpu)],
    ["TFLOPS/GPU", count(detail.model_tflops_per_gpu)],
    [`MFU, ${detail.flops_convention}`, percent(detail.mfu, 1)],
    ["peak memory", `${gib(memory.peak_gib)} of ${gib(memory.limit_gib)} GiB`],
    ["fits", chance(confidence.fit_probability)],
    ["days", detail.days_to_train === null ? null : days(detail.days_to_train)],
    ["cost", detail.cost === null ? null : count(detail.cost)],
    ["origin", detail.origin],
  ].filter(([, value]) => value !== null);
  return h("dl", { class: "facts", title: `${confidence.level}: ${confidence.calibrated_on}` },
    rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** The exported files of a plan: look, copy, download. */
function config(one) {
  const names = one.detail.fits ? Object.keys(one.files || {}) : [];
  if (!names.length) {
    return h("div", { class: "config" }, h("h3", null, "Config"),
      h("p", { class: "quiet" }, one.detail.fits ? one.fileProblem || "No config is exported for this plan."
        : "This plan does not fit in memory: there is nothing to download."));
  }
  const text = h("pre", { tabindex: 0, "aria-label": "Exported file" });
  const pick = h("select", { "aria-label": "Exported file" }, names.map((name) => h("option", { value: name }, name)));
  const show = () => { text.textContent = one.files[pick.value]; };
  pick.addEventListener("change", show);
  pick.value = names.find((name) => name.endsWith(".sh")) || names[0];
  show();
  return h("div", { class: "config" },
    h("header", null, h("h3", null, "Config"), pick,
      h("button", { type: "button", onclick: () => download(pick.value, one.files[pick.value]) }, "Download"),
      copyButton("Copy", () => one.files[pick.value])),
    h("details", null, h("summary", null, "Show the file"), text));
}

function comparison(details) {
  const [a, b] = details;
  const signed = (value, text) => `${value >= 0 ? "+" : "−"}${text(Math.abs(value))}`;
  const ratio = (name, key, text) => [name, text(key(a)), text(key(b)), signed(key(b) / key(a) - 1, (value) => percent(value, 1))];
  const share = (name, key, digits) => [name, percent(key(a), digits), percent(key(b), digits),
    signed(key(b) - key(a), (value) => `${(100 * value).toFixed(digits)} points`)];
  const keys = [...new Set(details.flatMap((detail) => Object.keys(detail.plan)))]
    .filter((key) => JSON.stringify(a.plan[key]) !== JSON.stringify(b.plan[key]));
  const said = (value) => value === null || value === "" || (Array.isArray(value) && !value.length) ? "–" : String(value);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Comparison" },
    table("Two plans compared", ["figure", "chosen", "compared", "difference"], [
      ratio("step, s", (detail) => detail.step_seconds, plainSeconds),
      ratio("tokens/s/GPU", (detail) => detail.tokens_per_second_per_gpu, count),
      share("MFU", (detail) => detail.mfu, 1),
      ratio("peak memory, GiB", (detail) => detail.memory.peak_gib, gib),
      share("chance to fit", (detail) => detail.confidence.fit_probability, 0),
      ...keys.map((key) => [h("code", null, key), said(a.plan[key]), said(b.plan[key]), ""]),
    ], { class: "figures compared" }));
}
