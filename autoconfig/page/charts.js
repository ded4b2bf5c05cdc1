// Memory of the stages and time of the step, as SVG. Every chart has a table of the same numbers beside it.

import { h, hover, responsive, s, table } from "./dom.js";
import { byKind, fixed, gib, marks, markText, partName, percent, planWords, seconds, timeKind, MEMORY_KINDS } from "./format.js";

const ROW = 20;
const BAR = 14;
const LABEL = 54;
const AXIS = 22;
/** Left of bars whose names are words. */
const SIDE = 92;

/** What colours mean. */
export function legend(kinds) {
  return h("ul", { class: "legend" }, kinds.map(([kind, text]) => h("li", null, h("i", { class: `key fill-${kind}` }), text)));
}

/** A plan's short form, breaking between its keys. */
export const planText = (short) => h("code", { class: "plan" },
  planWords(short).map((word, index) => [index ? [",", h("wbr")] : null,
    word.split(/(?<=[:+])/).map((piece, place) => [place ? h("wbr") : null, piece])]));

/** Rows of stacked bars over one scale. A row: {label, parts: [[fill, name, value]], lines}. */
export function bars(rows, top, text, limit, label) {
  const draw = (width) => {
    const x = (value) => SIDE + (value / top) * (width - SIDE - 12);
    const below = rows.length * ROW + 16;
    return s("svg", { width, height: below + AXIS, role: "img", "aria-label": label },
      marks(0, top, width / 90).map((value) => s("g", null,
        s("line", { class: "grid", x1: x(value), x2: x(value), y1: 14, y2: below }),
        s("text", { class: "mark", x: x(value), y: below + 14, "text-anchor": "middle" }, markText(value)))),
      rows.map((row, index) => bar(row, index, x)),
      limit === null ? null : s("line", { class: "limit", x1: x(limit), x2: x(limit), y1: 12, y2: below }),
      s("text", { class: limit === null ? "title" : "limit-text", x: width - 12, y: 9, "text-anchor": "end" }, text));
  };
  return responsive(draw, { class: "chart" });
}

function bar(row, index, x) {
  let from = 0;
  const drawn = row.parts.map(([fill, , value]) => {
    const start = from;
    from += value;
    return s("rect", { class: `fill-${fill}`, x: x(start), y: 17 + index * ROW, height: BAR, width: Math.max(0, x(from) - x(start)) });
  });
  return hover(s("g", { class: "bar" }, s("rect", { class: "hit", x: 0, y: 14 + index * ROW, width: x(from), height: ROW }),
    s("text", { class: "mark", x: SIDE - 6, y: 28 + index * ROW, "text-anchor": "end" }, row.label), drawn), () => row.lines);
}

/** Stacked bars: memory of every pipeline stage against what the allocator can give and what the device has. */
export function memoryChart(detail, most) {
  const { limit_gib: limit, device_gib: device } = detail.memory;
  const top = Math.max(most, device) * 1.02;
  const draw = (width) => {
    const x = (value) => LABEL + (value / top) * (width - LABEL - 12);
    const height = detail.stages.length * ROW + AXIS + 16;
    const bars = detail.stages.map((stage, index) => stageBar(stage, index, x));
    const below = detail.stages.length * ROW + 16;
    return s("svg", { width, height, role: "img", "aria-label": memoryText(detail) },
      s("rect", { class: "beyond", x: x(limit), y: 14, width: Math.max(0, x(device) - x(limit)), height: below - 14 }),
      marks(0, top, width / 90).map((value) => s("g", null,
        s("line", { class: "grid", x1: x(value), x2: x(value), y1: 14, y2: below }),
        s("text", { class: "mark", x: x(value), y: below + 14, "text-anchor": "middle" }, markText(value)))),
      bars,
      s("line", { class: "limit", x1: x(limit), x2: x(limit), y1: 12, y2: below }),
      s("text", { class: "limit-text", x: x(limit) - 4, y: 9, "text-anchor": "end" }, `limit ${gib(limit)} GiB`));
  };
  return h("figure", null,
    h("figcaption", null, "Memory of every pipeline stage at its peak, GiB"),
    responsive(draw, { class: "chart" }),
    legend([...MEMORY_KINDS.map((kind) => [kind, kind]), ["beyond", "context, NCCL, allocator"]]),
    h("details", { class: "numbers" }, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0 },
      memoryTable(detail))));
}

function stageBar(stage, index, x) {
  const kinds = byKind(stage.breakdown_gib);
  let from = 0;
  const parts = MEMORY_KINDS.map((kind) => {
    const start = from;
    from += kinds[kind];
    return s("rect", { class: `fill-${kind}`, x: x(start), y: 17 + index * ROW, height: BAR,
      width: Math.max(0, x(from) - x(start)) });
  });
  const lines = () => [
    `stage ${stage.stage}: ${gib(stage.peak_gib)} GiB, at ${partName(stage.moment)}`,
    ...Object.entries(stage.breakdown_gib).filter(([, value]) => value >= 0.005).sort((a, b) => b[1] - a[1])
      .map(([key, value]) => `${fixed(value, 2)} ${partName(key)}`),
  ];
  return hover(s("g", { class: "bar" },
    s("rect", { class: "hit", x: 0, y: 14 + index * ROW, width: x(from), height: ROW }),
    s("text", { class: "mark", x: LABEL - 6, y: 28 + index * ROW, "text-anchor": "end" }, `stage ${stage.stage}`), parts), lines);
}

const memoryText = (detail) =>
  `Peak memory by stage: ${detail.stages.map((stage) => `${stage.stage}: ${gib(stage.peak_gib)}`).join(", ")} GiB; ` +
  `limit ${gib(detail.memory.limit_gib)} GiB`;

function memoryTable(detail) {
  const keys = [...new Set(detail.stages.flatMap((stage) => Object.keys(stage.breakdown_gib)))]
    .filter((key) => detail.stages.some((stage) => stage.breakdown_gib[key] >= 0.005));
  const rows = [["peak", ...detail.stages.map((stage) => fixed(stage.peak_gib, 2))],
    ...keys.map((key) => [partName(key), ...detail.stages.map((stage) => fixed(stage.breakdown_gib[key] || 0, 2))])];
  return table("Memory by stage and part, GiB", ["GiB", ...detail.stages.map((stage) => `stage ${stage.stage}`)], rows,
    { class: "figures" });
}

/** Where the step's time goes: one bar and number a part, the longest first. `order` and `most` keep two plans alike. */
export function timeChart(detail, order, most) {
  const parts = detail.time.breakdown_seconds;
  const total = detail.step_seconds;
  const rows = order.map((key) => {
    const value = parts[key] || 0;
    const bar = h("i", { class: `part fill-${timeKind(key)}` });
    bar.style.width = `${(100 * value) / most}%`;
    return h("tr", null, h("th", { scope: "row" }, partName(key)), h("td", { class: "bars" }, bar),
      h("td", null, seconds(value)), h("td", null, percent(value / total, 1)));
  });
  return h("figure", null,
    h("figcaption", null, `Time of one step, ${seconds(total)}`),
    h("table", { class: "parts" }, h("caption", { class: "unseen" }, "Parts of the step's time"),
      h("thead", { class: "unseen" }, h("tr", null,
        ["part", "", "seconds", "share"].map((name) => h("th", { scope: "col" }, name || "bar")))),
      h("tbody", null, rows)),
    legend(["compute", "communication", "idle", "optimizer"].map((kind) => [kind, kind])));
}

/** Parts of one or two plans, the longest of the first ahead; parts that are nothing in both are left out. */
export function timeOrder(details) {
  const [first] = details;
  const size = (key) => Math.max(...details.map((detail) => detail.time.breakdown_seconds[key] || 0));
  const keys = [...new Set(details.flatMap((detail) => Object.keys(detail.time.breakdown_seconds)))];
  const order = keys.filter((key) => size(key) >= 1e-4 * first.step_seconds)
    .sort((a, b) => (first.time.breakdown_seconds[b] || 0) - (first.time.breakdown_seconds[a] || 0));
  return { order, most: Math.max(...order.map(size)) };
}
