// Plots whose points answer to hover, to the arrow keys and to a click or Enter.

import { h, hideTip, responsive, s, showTip } from "./dom.js";
import { chance, count, fixed, gib, marks, markText, percent, plainSeconds, seconds } from "./format.js";

const EDGE = { left: 56, right: 14, top: 14, bottom: 40 };
const SHAPES = [
  (x, y, r) => s("circle", { cx: x, cy: y, r }),
  (x, y, r) => s("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r }),
  (x, y, r) => s("path", { d: `M${x} ${y - 1.3 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z` }),
  (x, y, r) => s("path", { d: `M${x} ${y - 1.4 * r}L${x + 1.4 * r} ${y}L${x} ${y + 1.4 * r}L${x - 1.4 * r} ${y}Z` }),
];

function span(values, share) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = (high - low || Math.abs(high) || 1) * share;
  return [Math.max(0, low - room), high + room];
}

/** Axes, grid and the points of a plot. `x`, `y`: {of, low, high, log, title}; a point: {x, y, kind, lines, label, choose}. */
function frame(width, height, x, y, points, extra) {
  const scale = (axis, from, to) => {
    const t = axis.log ? Math.log : (value) => value;
    return (value) => from + ((t(value) - t(axis.low)) / (t(axis.high) - t(axis.low))) * (to - from);
  };
  const px = scale(x, EDGE.left, width - EDGE.right);
  const py = scale(y, height - EDGE.bottom, EDGE.top);
  const [bottom, right] = [height - EDGE.bottom, width - EDGE.right];
  const xs = x.marks || marks(x.low, x.high, width / 90);
  const ys = y.marks || marks(y.low, y.high, height / 50);
  return s("svg", { width, height },
    xs.map((value) => s("g", null,
      s("line", { class: "grid", x1: px(value), x2: px(value), y1: EDGE.top, y2: bottom }),
      s("text", { class: "mark", x: px(value), y: bottom + 15, "text-anchor": "middle" }, markText(value)))),
    ys.map((value) => s("g", null,
      s("line", { class: "grid", x1: EDGE.left, x2: right, y1: py(value), y2: py(value) }),
      s("text", { class: "mark", x: EDGE.left - 6, y: py(value) + 4, "text-anchor": "end" }, markText(value)))),
    s("text", { class: "title", x: (EDGE.left + right) / 2, y: height - 6, "text-anchor": "middle" }, x.title),
    s("text", { class: "title", x: 4, y: 10 }, y.title),
    extra(px, py, { right, bottom }),
    onTop(points.map((point, index) => mark(point, index, points, px, py))));
}

/** The chosen point is drawn last, over the others. */
const onTop = (elements) => elements.sort((a, b) => a.classList.contains("chosen") - b.classList.contains("chosen"));

/** A point as a button; one tab stop for the plot, arrow keys go from point to point. */
function mark(point, index, points, px, py) {
  const [cx, cy] = [px(point.x), py(point.y)];
  const shape = SHAPES[(point.shape || 0) % SHAPES.length](cx, cy, point.size || 4);
  const element = s("g", { class: `point ${point.kind}`, role: "button", tabindex: index ? -1 : 0, "aria-label": point.label,
    "data-short": point.short, "aria-current": point.chosen ? "true" : null }, s("circle", { class: "hit", cx, cy, r: 10 }), shape);
  const tell = () => {
    const box = element.getBoundingClientRect();
    showTip(point.lines, box.left + box.width / 2, box.top + box.height / 2);
  };
  const go = (step) => {
    const next = points[(index + step + points.length) % points.length].element;
    element.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  };
  const keys = { ArrowRight: () => go(1), ArrowDown: () => go(1), ArrowLeft: () => go(-1), ArrowUp: () => go(-1),
    Enter: point.choose, " ": point.choose, Escape: hideTip };
  element.addEventListener("mouseenter", tell);
  element.addEventListener("mouseleave", hideTip);
  element.addEventListener("focus", tell);
  element.addEventListener("blur", hideTip);
  element.addEventListener("click", () => { hideTip(); point.choose(); });
  element.addEventListener("keydown", (event) => {
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  point.element = element;
  return element;
}

/** As `PLAINER` of training/rank.py: a plainer plan comes first when it is so much slower at most. */
const PLAINER = 0.03;

/** Of points {short, x, y} those that no other beats: none is as good on both axes and better on one; with them the first plan, where it is
 * as good as that. Then what the legend says of the first. `less`: whether less of x, of y is better. */
function frontier(points, first, [lessX, lessY]) {
  const better = (a, b, less) => (less ? a < b : a > b);
  const beats = (a, b) => !better(b.x, a.x, lessX) && !better(b.y, a.y, lessY) && (better(a.x, b.x, lessX) || better(a.y, b.y, lessY));
  const front = points.filter((point) => !points.some((other) => beats(other, point)));
  const inOrder = (list) => list.sort((a, b) => a.x - b.x || a.y - b.y);
  const one = points.find(({ short }) => short === first);
  if (!one || front.includes(one)) return [inOrder(front), one ? "; #1 is one of them" : ""];
  const behind = Math.max(...front.filter((other) => beats(other, one)).map((other) => Math.abs(other.y / one.y - 1)));
  const far = behind > PLAINER;
  return [inOrder(far ? front : [...front, one]), `; #1 is ${far ? "not one of them" : "one of them, too"}, ${percent(behind, 1)} behind` +
    (far ? "" : ", closer than the model can tell apart")];
}

/** Times the fastest step up to which plans are drawn, and all of the table. */
const WORTH_DRAWING = 1.25;

/** Step time against memory: the ranked plans, and those that no other beats in both. `chosen()` is the plan chosen. */
export function paretoPlot(answer, chosen, choose) {
  const all = new Map([...answer.plans, ...answer.pareto].map((plan) => [plan.short, plan]));
  const steps = answer.plans.map((plan) => plan.step_seconds);
  const slowest = Math.max(...steps, Math.min(...steps) * WORTH_DRAWING);
  const sorted = [...all.values()].filter((plan) => plan.step_seconds <= slowest).sort((a, b) => a.memory.peak_gib - b.memory.peak_gib);
  const left = all.size - sorted.length;
  const [best, ofFirst] = frontier(sorted.map((plan) => ({ short: plan.short, x: plan.memory.peak_gib, y: plan.step_seconds })),
    answer.plans[0]?.short, [true, true]);
  const front = new Set(best.map(({ short }) => short));
  const pointsNow = () => sorted.map((plan) => ({
    short: plan.short,
    x: plan.memory.peak_gib,
    y: plan.step_seconds,
    kind: `${front.has(plan.short) ? "front" : "other"}${plan.short === chosen() ? " chosen" : ""}`,
    chosen: plan.short === chosen(),
    size: 4.5,
    label: `${plan.short}: ${seconds(plan.step_seconds)}, ${gib(plan.memory.peak_gib)} GiB`,
    lines: [plan.short, `${seconds(plan.step_seconds)} a step, MFU ${percent(plan.mfu, 1)}`,
      `${gib(plan.memory.peak_gib)} of ${gib(plan.memory.limit_gib)} GiB, fits ${chance(plan.confidence.fit_probability)}`],
    choose: () => choose(plan.short),
  }));
  if (!sorted.length) return null;
  const limit = answer.plans.concat(answer.pareto)[0].memory.limit_gib;
  const draw = (width) => {
    const points = pointsNow();
    const [low, high] = span(points.map((point) => point.x).concat(limit), 0.05);
    const [fast, slow] = span(points.map((point) => point.y), 0.1);
    return frame(width, 330, { low, high, title: "peak memory, GiB" }, { low: fast, high: slow, title: "seconds a step" }, points,
      (px, py, { bottom }) => {
        const line = best.map(({ x, y }) => `${px(x)},${py(y)}`).join(" ");
        return [s("line", { class: "limit", x1: px(limit), x2: px(limit), y1: EDGE.top, y2: bottom }),
          s("text", { class: "limit-text", x: px(limit) - 4, y: EDGE.top + 10, "text-anchor": "end" }, "limit"),
          s("polyline", { class: "front-line", points: line })];
      });
  };
  return h("figure", null,
    h("figcaption", null, "Step time against memory ", h("span", { class: "quiet" },
      `filled, on the line: nothing drawn is both faster and smaller${ofFirst}` +
        `${left ? `; ${left} slower ones with less memory are not drawn` : ""}. Arrow keys move, Enter chooses`)),
    responsive(draw, { class: "chart", role: "group", "aria-label": "Step time against memory" }));
}

/** Throughput over GPUs, both logarithmic, with perfect scaling from the first point of each type. */
export function scalingPlot(answer, choose) {
  const found = answer.points.filter((point) => point.best);
  if (!found.length) return null;
  const types = [...new Set(found.map((point) => point.gpu))];
  const points = found.map((point) => ({
    x: point.num_gpus,
    y: point.tokens_per_second,
    kind: `series-${types.indexOf(point.gpu) % 4}`,
    shape: types.indexOf(point.gpu),
    label: `${count(point.num_gpus)} ${point.gpu}: ${count(point.tokens_per_second)} tokens a second`,
    lines: [`${count(point.num_gpus)} x ${point.gpu}`, `${count(point.tokens_per_second)} tokens/s, ` +
      `efficiency ${percent(point.efficiency)}`, `${plainSeconds(point.best.step_seconds)} s a step`, point.best.short],
    choose: () => choose(point),
  }));
  const xs = [...new Set(found.map((point) => point.num_gpus))].sort((a, b) => a - b);
  const ys = found.map((point) => point.tokens_per_second);
  const ends = (values) => [Math.min(...values) / 1.15, Math.max(...values) * 1.15];
  const draw = (width) => {
    const [[low, high], [least, most]] = [ends(xs), ends(ys)];
    return frame(width, 280, { low, high, log: true, marks: sparse(xs, width / 60), title: "GPUs" },
      { low: least, high: most, log: true, marks: decades(least, most), title: "tokens a second" }, points,
      (px, py) => types.map((type, index) => {
        const own = found.filter((point) => point.gpu === type);
        const ideal = (gpus) => (own[0].tokens_per_second * gpus) / own[0].num_gpus;
        const end = Math.min(own[own.length - 1].num_gpus, (most / own[0].tokens_per_second) * own[0].num_gpus);
        return [s("line", { class: "ideal", x1: px(own[0].num_gpus), y1: py(ideal(own[0].num_gpus)), x2: px(end),
          y2: py(ideal(end)) }),
        s("polyline", { class: `curve curve-${index % 4}`,
          points: own.map((point) => `${px(point.num_gpus)},${py(point.tokens_per_second)}`).join(" ") })];
      }));
  };
  return h("figure", null,
    h("figcaption", null, "Throughput against GPUs ", h("span", { class: "quiet" }, "dashed: perfect scaling")),
    responsive(draw, { class: "chart", role: "group", "aria-label": "Throughput against GPUs" }),
    h("ul", { class: "legend" }, types.map((type, index) => h("li", null, h("i", { class: `key series-key-${index % 4}` }), type))));
}

function sparse(values, most) {
  const step = Math.max(1, Math.ceil(values.length / Math.max(2, most)));
  return values.filter((_, index) => index % step === 0);
}

/** 1, 2, 5 times powers of ten. */
function decades(low, high) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const factor of [1, 2, 5]) if (power * factor >= low && power * factor <= high) found.push(power * factor);
  }
  return found;
}

/** Throughput of a GPU over the speed of a user: the ranked deployments and the frontier, the limit of TPOT as a line. */
export function deploymentPlot(answer, all, chosen, choose) {
  const { tpot_limit_seconds: tpot, ttft_limit_seconds: ttft } = answer.question;
  const slowest = tpot ? 1 / tpot : null;
  const sorted = [...all].filter((one) => one.tpot_seconds).sort((a, b) => a.tokens_per_second_per_user - b.tokens_per_second_per_user);
  const [best, ofFirst] = frontier(sorted.map((one) => ({ short: one.plan, x: one.tokens_per_second_per_user, y: one.tokens_per_second_per_gpu })),
    answer.deployments[0]?.plan, [false, false]);
  const front = new Set(best.map(({ short }) => short));
  const pointsNow = () => sorted.map((one) => ({
    short: one.plan, x: one.tokens_per_second_per_user, y: one.tokens_per_second_per_gpu, size: 4.5,
    kind: `${front.has(one.plan) ? "front" : "other"}${one.plan === chosen ? " chosen" : ""}`, chosen: one.plan === chosen,
    label: `${one.plan}: ${count(one.tokens_per_second_per_gpu)} tokens/s/GPU, ${fixed(one.tokens_per_second_per_user, 1)} tokens/s/user`,
    lines: [one.plan, `${count(one.tokens_per_second_per_gpu)} tokens/s/GPU, ${count(one.users)} users`,
      `TTFT ${seconds(one.ttft_seconds)}, TPOT ${seconds(one.tpot_seconds)}`],
    choose: () => choose(one.plan),
  }));
  const draw = (width) => {
    const points = pointsNow();
    const [low, high] = span(points.map((point) => point.x).concat(slowest === null ? [] : slowest), 0.05);
    const [least, most] = span(points.map((point) => point.y), 0.08);
    return frame(width, 330, { low, high, title: "tokens/s of a user" }, { low: least, high: most, title: "tokens/s of a GPU" }, points,
      (px, py, { bottom }) => {
        const line = best.map(({ x, y }) => `${px(x)},${py(y)}`).join(" ");
        return [slowest === null ? null : [
          s("rect", { class: "beyond", x: EDGE.left, y: EDGE.top, width: Math.max(0, px(slowest) - EDGE.left), height: bottom - EDGE.top }),
          s("line", { class: "limit", x1: px(slowest), x2: px(slowest), y1: EDGE.top, y2: bottom }),
          s("text", { class: "limit-text", x: px(slowest) + 4, y: EDGE.top + 10 }, `TPOT ${seconds(tpot)}`)],
        s("polyline", { class: "front-line", points: line })];
      });
  };
  return h("figure", { class: "frontier" },
    h("figcaption", null, "Throughput of a GPU against the speed of a user ", h("span", { class: "quiet" },
      `filled, on the line: nothing drawn gives a GPU and a user more${ofFirst}` +
        `${ttft ? `; TTFT at most ${seconds(ttft)}` : ""}. Arrow keys move, Enter chooses`)),
    responsive(draw, { class: "chart", role: "group", "aria-label": "Throughput against speed" }));
}
