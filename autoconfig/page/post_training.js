// Placements of a step of post-training: the table, the step as a timeline over groups of GPUs, memory by phase.

import { bars, legend, planText } from "./charts.js";
import { h, hover, replace, responsive, s, summaryBox, table } from "./dom.js";
import { chance, count, fixed, gib, marks, markText, percent, seconds } from "./format.js";

/** Phases in their order: the name in the answer, the fill, and the name as it is shown. */
const PHASES = [["generation", "forward", "generation"], ["samples", "idle", "samples: rules, padding, moving"],
  ["logprob", "backward", "log-probabilities"], ["reference", "backward-odd", "reference"], ["values", "gradients", "values"],
  ["reward", "temporary", "reward"],
  ["training", "weights", "training"], ["critic_training", "optimizer", "training of the critic"],
  ["weight_sync", "wait", "weights to the engines"], ["other", "beyond", "rest"]];
const NAMES = Object.fromEntries(PHASES.map(([phase, , name]) => [phase, name]));
const FILLS = Object.fromEntries(PHASES.map(([phase, fill]) => [phase, fill]));
const ROW = 38;
const BAR = 18;
const SIDE = 6;

/** Names a placement in the link. */
const short = (one) => [one.placement, `${one.train_gpus}:${one.train_plan}`,
  ...(one.engine ? [`${one.engine.replicas} x tp=${one.engine.tp}`] : [])].join("; ");
const engines = ({ engine }) => engine ? `${count(engine.replicas)} x tp=${engine.tp}` : "none";
const band = (one) => `${count(one.step_seconds_p5)} to ${count(one.step_seconds_p95)}`;

/** What every group of GPUs does from the start of a step to its end; between two phases it waits. */
function timelineChart(one) {
  const { timeline: groups, step_seconds: step } = one;
  const draw = (width) => {
    const x = (value) => SIDE + (value / step) * (width - 2 * SIDE);
    const below = groups.length * ROW + 4;
    const svg = s("svg", { width, height: below + 20, role: "img", "aria-label": `Step of ${seconds(step)} over ${groups.length} groups of GPUs` },
      marks(0, step, width / 110).map((value) => s("g", null,
        s("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: below }),
        s("text", { class: "mark", x: x(value), y: below + 14, "text-anchor": value ? "middle" : "start" }, `${markText(value)} s`))),
      groups.map((group, index) => groupBar(group, 4 + index * ROW, x, step)));
    return hover(svg, (event) => {
      const corner = svg.getBoundingClientRect();
      const group = groups[Math.floor((event.clientY - corner.top - 4) / ROW)];
      const at = ((event.clientX - corner.left - SIDE) / (width - 2 * SIDE)) * step;
      return group && at >= 0 && at <= step ? said(group, at) : null;
    });
  };
  const used = PHASES.filter(([phase]) => one.phases[phase] > 0);
  return h("figure", { class: "wide step" },
    h("figcaption", null, `One step, ${seconds(step)}, over groups of GPUs`),
    responsive(draw, { class: "chart" }),
    legend([...used.map(([, fill, name]) => [fill, name]), ["bubble", "waits"]]),
    h("details", { class: "numbers" }, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0 },
      table("Phases of the step, s", ["phase", "seconds", ...groups.map((group) => `${group.name}, from to`)],
        used.map(([phase, , name]) => [name, fixed(one.phases[phase], 2), ...groups.map((group) => {
          const found = group.intervals.find((piece) => piece.phase === phase);
          return found ? `${fixed(found.start, 2)} to ${fixed(found.end, 2)}` : "–";
        })]), { class: "figures" }))));
}

function groupBar(group, y, x, step) {
  return s("g", { class: "bar" },
    s("text", { class: "mark", x: SIDE, y: y + 11 }, `${group.name}: ${count(group.gpus)} GPUs`),
    s("rect", { class: "fill-bubble", x: x(0), y: y + 15, width: x(step) - x(0), height: BAR }),
    group.intervals.map((piece) => s("rect", { class: `fill-${FILLS[piece.phase]}`, "data-phase": piece.phase, x: x(piece.start),
      y: y + 15, width: Math.max(0.5, x(piece.end) - x(piece.start)), height: BAR })));
}

function said(group, at) {
  const piece = group.intervals.find((one) => one.start <= at && at < one.end);
  return piece ? [`${group.name}: ${NAMES[piece.phase]}`, `${seconds(piece.end - piece.start)} from ${seconds(piece.start)}`]
    : [`${group.name}: waits`, `at ${seconds(at)}`];
}

/** The peak of a GPU by phase against what it has. */
function memoryChart(one) {
  const { generation, training, device, host } = one.memory_gib;
  const rows = [["generation", "forward", generation], ["training", "weights", training]].filter(([, , value]) => value > 0)
    .map(([label, fill, value]) => ({ label, parts: [[fill, label, value]], lines: [`${label}: ${gib(value)} of ${gib(device)} GiB`] }));
  return h("figure", { class: "memory-of-phases" },
    h("figcaption", null, "Peak of a GPU by phase, GiB", h("span", { class: "quiet" }, `${gib(host)} GiB wait on the host of a node`)),
    bars(rows, Math.max(device, generation, training) * 1.02, `device ${gib(device)} GiB`, device, "Peak of a GPU by phase"),
    h("details", { class: "numbers" }, h("summary", null, "Numbers"), h("div", { class: "scroll", tabindex: 0 },
      table("Peak by phase, GiB", ["phase", "GiB"], [...rows.map((row) => [row.label, fixed(row.parts[0][2], 2)]),
        ["device", fixed(device, 2)], ["host of a node", fixed(host, 2)]], { class: "figures" }))));
}

function summary(answer) {
  const more = answer.one_more_node_step_seconds;
  return summaryBox([answer.model, `${answer.algorithm} with ${answer.framework}`, `${count(answer.gpus)} x ${answer.gpu}`,
    `${count(answer.samples)} samples a step`], `${count(answer.considered)} placements priced` +
    (more ? `; with one more node a step takes ${seconds(more)}` : ""), answer.assumed);
}

function row(one, index, ties, chosen, choose) {
  const name = short(one);
  const memory = Math.max(one.memory_gib.generation, one.memory_gib.training);
  return h("tr", { class: name === chosen ? "chosen" : "", "data-short": name, onclick: () => choose(name) },
    h("td", null, h("input", { type: "radio", name: "placement", value: name, checked: name === chosen,
      "aria-label": `Choose ${name}`, onchange: () => choose(name) })),
    h("th", { scope: "row" }, `${index + 1}${ties > 1 && index < ties ? "=" : ""}`),
    h("td", { class: "words" }, one.placement),
    h("td", { class: "words" }, `${count(one.train_gpus)}: `, planText(one.train_plan)),
    [engines(one), seconds(one.step_seconds), band(one), NAMES[one.binds], gib(memory), chance(fit(one)), gib(one.memory_gib.host)]
      .map((text) => h("td", null, text)));
}

/** The chance that no phase runs out of memory. */
const fit = ({ memory_gib: memory }) => Math.min(memory.generation_fit_probability, memory.training_fit_probability);

/** The chance that is asked for. */
const least = (answer) => `${Number((answer.fit_chance * 100).toPrecision(6))} %`;

/** The whole answer. `chosen()` names the placement chosen, `changed(name)` is told of another. */
export function placementsView(answer, chosen, changed) {
  const none = !answer.placements.length;
  const list = none && answer.nearest ? [answer.nearest] : answer.placements;
  const all = new Map(list.map((one) => [short(one), one]));
  const box = h("div", { class: "placements" });
  const draw = () => {
    const name = all.has(chosen()) ? chosen() : [...all.keys()][0];
    const one = all.get(name);
    const choose = (other) => {
      if (other === name) return;
      changed(other);
      draw();
      box.querySelector(`input[value="${CSS.escape(other)}"]`)?.focus();
    };
    const heads = ["engines", "step", "5 to 95 %, s", "binds", "GPU GiB", "fit", "host GiB"];
    replace(box, summary(answer),
      none ? h("p", { class: "note bad" }, `No placement fits; ${answer.remedy}.`, one ? ` The nearest: ${one.reason}.` : null) : null,
      none || answer.fit_chance_met ? null : h("p", { class: "note bad" },
        `No placement has a chance to fit of ${least(answer)}; with it ${answer.remedy}.`),
      answer.ties > 1 ? h("p", { class: "note" }, `= marks a tie: ${count(answer.ties)} placements are closer in step time than ` +
        "the model can tell apart; fit is the chance not to run out of GPU memory.") : null,
      answer.riskier ? h("p", { class: "note" }, `${percent(1 - answer.riskier.step_seconds / list[0].step_seconds)} faster if it fits (chance ` +
        `${chance(fit(answer.riskier))}, below ${least(answer)}): ${answer.riskier.placement}, ${engines(answer.riskier)}, `,
        planText(answer.riskier.train_plan)) : null,
      one ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ranked placements" },
        h("table", { class: "plans" }, h("caption", null, none ? "Nearest placement" : `${list.length} quickest placements`),
          h("thead", null, h("tr", null, h("td", null, h("span", { class: "unseen" }, "chosen")), h("th", { scope: "col" }, "#"),
            ["placement", "training"].map((head) => h("th", { scope: "col", class: "words" }, head)),
            heads.map((head) => h("th", { scope: "col" }, head)))),
          h("tbody", null, list.map((each, index) => row(each, index, answer.ties, name, choose))))) : null,
      one ? h("section", { class: "detail", "aria-label": "Chosen placement" }, h("article", null,
        h("header", null, h("h2", null, `${one.placement}, ${engines(one)}`), planText(one.train_plan)),
        timelineChart(one), memoryChart(one))) : null);
  };
  draw();
  return box;
}
