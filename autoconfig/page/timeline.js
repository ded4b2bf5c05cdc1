// The step as a pipeline timeline: a row a stage, micro-batches forwards and backwards, the communication inside them, the bubble.

import { h, hover, replace, responsive, s, table } from "./dom.js";
import { count, markText, marks, percent, seconds } from "./format.js";
import { legend } from "./charts.js";

const ROW = 22;
const BAR = 18;
const LABEL = 54;
/** Pixels from which chunks of layers are told apart by their shade. */
const LEAST_SHADED = 4;
const ZOOMS = [1, 2, 4, 8, 16];
const AFTER = [
  ...["gradient_reduction_seconds", "parameter_gather_seconds", "embedding_gradient_seconds", "optimizer_seconds"],
  "step_launch_seconds",
];

/** Work of a stage with its ends: {forward, chunk, microbatch, start, end, waits}. */
function pieces(stage) {
  return stage.work.map(([forward, chunk, microbatch, start]) => {
    const known = stage.chunks[chunk];
    const way = forward ? "forward" : "backward";
    return { forward, chunk, microbatch, start, end: start + known[`${way}_seconds`],
      waits: known[`${way}_communication_seconds`] };
  });
}

export function timelineChart(timeline, detail) {
  const stages = timeline.stages.map(pieces);
  const last = Math.max(...stages.flatMap((work) => work.map((piece) => piece.end)));
  const after = AFTER.reduce((sum, key) => sum + (detail.time.breakdown_seconds[key] || 0), 0);
  const drawn = timeline.shown_microbatches;
  const some = drawn < timeline.num_microbatches;
  const box = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Pipeline timeline of ${detail.short}` });
  const zoom = h("select", { "aria-label": `Zoom of the timeline of ${detail.short}`,
    onchange: () => replace(box, draw(Number(zoom.value))) }, ZOOMS.map((size) => h("option", { value: size }, `x${size}`)));
  const draw = (size) => responsive((width) => drawing(stages, last, after, width, timeline), { class: `chart zoom-${size}` });
  replace(box, draw(1));
  const text = `${some ? `First ${count(drawn)} of ${count(timeline.num_microbatches)}` : count(drawn)} micro-batches of a ` +
    `data-parallel rank; the stages idle ${percent(timeline.bubble_share, 1)} of what is drawn` +
    (some ? `, the bubble is ${percent((detail.time.breakdown_seconds.pipeline_bubble_seconds || 0) / detail.step_seconds, 1)} ` +
      "of the whole step" : "");
  return h("figure", { class: "wide" },
    h("figcaption", null, h("span", null, "Pipeline timeline. ", h("span", { class: "quiet" }, text)), zoom),
    box,
    legend([["forward", "forward"], ["backward", "backward"], ["wait", "communication (share of the height)"],
      ["bubble", "bubble"], ["after", "exposed gradient reduction, parameter gather, optimizer"]]),
    h("details", { class: "numbers" }, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0 },
      chunkTable(timeline))));
}

function drawing(stages, last, after, width, timeline) {
  const top = last + after;
  const x = (value) => LABEL + (value / top) * (width - LABEL - 12);
  const below = stages.length * ROW + 2;
  const rows = stages.map((work, stage) => row(work, stage, x, last, timeline.stages[stage]));
  const svg = s("svg", { width, height: below + 20, role: "img",
    "aria-label": `Timeline of ${stages.length} stages; idle share ${percent(timeline.bubble_share, 1)}` },
    marks(0, top, width / 110).map((value) => s("g", null,
      s("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: below }),
      s("text", { class: "mark", x: x(value), y: below + 14, "text-anchor": "middle" }, `${markText(value)} s`))),
    rows,
    s("rect", { class: "fill-after", x: x(last), y: 2, width: Math.max(0, x(top) - x(last)), height: below - 6 }));
  return hover(svg, (event) => {
    const corner = svg.getBoundingClientRect();
    const at = ((event.clientX - corner.left - LABEL) / (width - LABEL - 12)) * top;
    const stage = Math.floor((event.clientY - corner.top) / ROW);
    return stages[stage] && at >= 0 && at <= top ? said(stages[stage], stage, at, last, after) : null;
  });
}

/** One stage. Work of a kind is one path, so that thousands of pieces stay cheap to draw. */
function row(work, stage, x, last, known) {
  const y = 2 + stage * ROW;
  const paths = {};
  const texts = [];
  for (const piece of work) {
    const way = piece.forward ? "forward" : "backward";
    const from = x(piece.start);
    const to = Math.max(from + 0.3, x(piece.end) - (x(piece.end) - from > 3 ? 0.6 : 0));
    const waits = (BAR * piece.waits) / (piece.end - piece.start || 1);
    const name = piece.chunk % 2 && to - from >= LEAST_SHADED ? `${way}-odd` : way;
    paths[name] = `${paths[name] || ""}M${from.toFixed(2)} ${y}H${to.toFixed(2)}V${y + BAR}H${from.toFixed(2)}Z`;
    paths.wait = `${paths.wait || ""}M${from.toFixed(2)} ${(y + BAR - waits).toFixed(2)}H${to.toFixed(2)}V${y + BAR}` +
      `H${from.toFixed(2)}Z`;
    if (to - from > 16) {
      texts.push(s("text", { class: "batch", x: (from + to) / 2, y: y + 12, "text-anchor": "middle" }, piece.microbatch));
    }
  }
  return s("g", null,
    s("text", { class: "mark", x: LABEL - 6, y: y + 13, "text-anchor": "end" }, `stage ${known.stage}`),
    s("rect", { class: "fill-bubble", x: x(0), y, width: x(last) - x(0), height: BAR }),
    Object.entries(paths).map(([name, d]) => s("path", { class: `fill-${name}`, d })), texts);
}

function said(work, stage, at, last, after) {
  if (at > last) return ["after the pipeline", `${seconds(after)} exposed on all stages`];
  const piece = work.find((one) => one.start <= at && at < one.end);
  if (!piece) return [`stage ${stage}: idle`, `at ${seconds(at)}`];
  return [`stage ${stage}, micro-batch ${piece.microbatch}, ${piece.forward ? "forward" : "backward"}`,
    `chunk ${piece.chunk} of layers`, `${seconds(piece.end - piece.start)} from ${seconds(piece.start)}`,
    `${seconds(piece.waits)} of it communication`];
}

function chunkTable(timeline) {
  const rows = timeline.stages.map((stage) => {
    const sum = (key) => stage.chunks.reduce((total, chunk) => total + chunk[key], 0);
    return [`stage ${stage.stage}`, count(stage.chunks.length),
      ...["forward_seconds", "forward_communication_seconds", "backward_seconds", "backward_communication_seconds"]
        .map((key) => seconds(sum(key)))];
  });
  return table("One micro-batch through every stage",
    ["stage", "chunks", "forward", "of it communication", "backward", "of it communication"], rows, { class: "figures" });
}
