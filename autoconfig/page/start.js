// The start of a serving engine: does it start, memory of a GPU as bars, tokens of the cache, the load as curves.

import { bars, legend, planText } from "./charts.js";
import { h, responsive, s, summaryBox, table } from "./dom.js";
import { count, fixed, gib, marks, markText } from "./format.js";

const VERDICTS = { yes: "Starts.", no: "Does not start.", uncertain: "May start or not." };
const FILLS = [["weights", "weights"], ["temporary", "profile run, activations"], ["gradients", "what is not torch's"],
  ["optimizer", "graphs"], ["beyond", "kept free"], ["activations", "KV cache"]];
const BINDS = { seqs: "number of sequences", pool: "size of the cache", states: "number of state blocks" };
/** Users at once of the curves. */
export const USERS = [1, 4, 16, 64, 256];
/** Shares of the most requests a second of those, at which the curves over the rate stand. */
const SHARES = [0.2, 0.4, 0.6, 0.8, 0.9];
const HEIGHT = 150;

/** The fill of a part by its name. */
function fillOf(name) {
  if (name.startsWith("weights")) return "weights";
  if (name.startsWith("KV")) return "activations";
  if (/graph/i.test(name) && !/kept free/.test(name)) return "optimizer";
  if (/kept free/.test(name)) return "beyond";
  return /torch|context|communicator/.test(name) ? "gradients" : "temporary";
}

function memoryChart(answer) {
  const parts = answer.parts.map((part) => [fillOf(part.name), part.name, Math.max(0, part.gib)]);
  const total = answer.parts.reduce((sum, part) => sum + Math.max(0, part.gib), 0);
  const used = FILLS.filter(([fill]) => parts.some(([of]) => of === fill));
  return h("figure", { class: "memory-of-start" },
    h("figcaption", null, "Memory of a GPU, GiB"),
    bars([{ label: answer.gpu.split("-")[0], parts, lines: parts.map(([, name, value]) => `${gib(value)} GiB ${name}`) }], total * 1.02,
      `${gib(total)} GiB`, null, "Memory of a GPU by part"),
    legend(used),
    h("details", { class: "numbers", open: true }, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0 },
      table("Memory of a GPU by part, GiB", ["part", "GiB", "from"], answer.parts.map((part) => [part.name, fixed(part.gib, 2), part.source]), { class: "sources" }))));
}

function cacheText(answer) {
  if (answer.kv_tokens === null) return null;
  const longest = answer.longest_max_model_len ? count(answer.longest_max_model_len) : "none";
  return h("ul", { class: "words" },
    h("li", null, h("strong", null, `${count(answer.kv_tokens)} tokens of KV cache`), answer.block_size === 1 ? "" : `, ${count(answer.blocks)} blocks of ${answer.block_size}`,
      answer.groups.length ? `; ${answer.groups.join(", ")}` : ""),
    h("li", null, `${fixed(answer.max_concurrency, 2)} sequences of ${count(answer.max_model_len)} tokens at once, ${gib(answer.sequence_gib)} GiB each; ` +
      `what binds: the ${BINDS[answer.binds]}`),
    h("li", null, `longest sequence that starts: ${longest} tokens`),
    answer.changes.length ? h("li", null, "each of these alone would start: ", answer.changes.map((change) => [h("code", null, change), " "])) : null);
}

function loadText({ load }) {
  if (!load) return null;
  if (load.ttft_ms === null) return h("p", { class: "note" }, load.note);
  const better = load.better;
  return h("div", null,
    h("p", null, `TTFT ${count(Math.round(load.ttft_ms))} ms, TPOT ${fixed(load.tpot_ms, 1)} ms, ${count(Math.round(load.tokens_per_s))} output tokens/s`),
    load.note ? h("p", { class: "quiet" }, load.note) : null,
    better ? h("p", null, `Better: TPOT ${fixed(better.tpot_ms, 1)} ms, ${count(Math.round(better.tokens_per_s))} output tokens/s, by `,
      better.changes.map(({ flag, before, after }) => [h("code", null, `${flag} ${before || "–"} → ${after || "–"}`), " "])) : null,
    better && better.diff.length ? h("pre", { class: "diff", tabindex: 0 }, better.diff.join("\n")) : null,
    load.hints.length ? h("ul", { class: "words" }, load.hints.map((hint) => h("li", null, "more still: ", h("code", null, hint.change),
      `, TPOT ${fixed(hint.tpot_ms, 1)} ms, ${count(Math.round(hint.tokens_per_s))} output tokens/s (${hint.why})`))) : null);
}

/** One figure of several loads over users or requests a second, both axes from zero; loads by their place. */
function curve(points, name, unit, text, over = "users at once", of = "users") {
  const top = Math.max(...points.map(({ value }) => value)) * 1.1 || 1;
  const draw = (width) => {
    const x = (place) => 50 + (place / Math.max(1, points.length - 1)) * (width - 70);
    const y = (value) => 12 + (1 - value / top) * (HEIGHT - 36);
    return s("svg", { width, height: HEIGHT, role: "img", "aria-label": `${name} by ${over}` },
      marks(0, top, 4).map((value) => s("g", null, s("line", { class: "grid", x1: 50, x2: width - 12, y1: y(value), y2: y(value) }),
        s("text", { class: "mark", x: 44, y: y(value) + 4, "text-anchor": "end" }, markText(value)))),
      s("polyline", { class: "frontier", points: points.map(({ value }, place) => `${x(place)},${y(value)}`).join(" "), fill: "none", stroke: "currentColor" }),
      points.map(({ load, value }, place) => s("g", null, s("circle", { cx: x(place), cy: y(value), r: 3, fill: "currentColor" },
        s("title", null, `${markText(load)} ${of}: ${text(value)}`)),
        s("text", { class: "mark", x: x(place), y: HEIGHT - 6, "text-anchor": "middle" }, markText(load)))));
  };
  return h("figure", null, h("figcaption", null, `${name}, ${unit}, by ${over}`), responsive(draw, { class: "chart" }));
}

const MS = { ttft_ms: ["TTFT", (value) => `${fixed(value, 0)} ms`], tpot_ms: ["TPOT", (value) => `${fixed(value, 1)} ms`] };

/** Requests a second at which curves are drawn, by answers to loads of several users; none where nothing is served. */
export function ratesOf(answers) {
  const most = Math.max(0, ...answers.filter(({ load }) => load && load.tokens_per_s).map(({ load }) => load.tokens_per_s / load.osl));
  return most > 0 ? SHARES.map((share) => Number((share * most).toPrecision(2))) : [];
}

/** Curves of answers to loads of several users, and to several rates: TTFT, TPOT, throughput. */
export function loadCurves(answers, open = []) {
  const points = (served, key, by) => served.filter(({ load }) => load && load.ttft_ms !== null).map(({ load }) => ({ load: load[by], value: load[key] }));
  const [users, rates] = [points(answers, "tokens_per_s", "concurrency"), points(open, "ttft_ms", "rate")];
  if (users.length < 2) return null;
  const times = (served, by, ...words) => Object.entries(MS).map(([key, [name, text]]) => curve(points(served, key, by), name, "ms", text, ...words));
  return h("div", { class: "curves" }, times(answers, "concurrency"), curve(users, "Output tokens", "per second", (value) => count(Math.round(value))),
    rates.length > 1 ? times(open, "rate", "requests per second", "requests/s") : null);
}

/** The answer to a pasted command; `curves`: a box that fills when the loads are known. */
export function startView(answer, curves) {
  if (answer.kind !== "start") return [h("p", { class: "note bad", role: "alert" }, "no command of vLLM, SGLang or TensorRT-LLM is in this text")];
  const words = [`${answer.engine} ${answer.release}`.trim(), answer.model, `${count(answer.plan.gpus)} x ${answer.gpu}`, planText(answer.plan.short)];
  return [
    summaryBox(words, `release: ${answer.release_source}; weights: ${answer.weights}`, answer.assumed),
    h("p", { class: answer.starts === "yes" ? "note" : "note bad", role: "status" }, h("strong", null, VERDICTS[answer.starts]), ` ${answer.why}`),
    answer.unknown_arguments.length ? h("p", { class: "note bad" }, answer.unknown_arguments.join("; ")) : null,
    cacheText(answer),
    answer.parts.length ? memoryChart(answer) : null,
    loadText(answer),
    curves,
    answer.not_modelled_arguments.map((text) => h("p", { class: "quiet" }, `not modelled: ${text}`)),
  ];
}
