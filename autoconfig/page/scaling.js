// Throughput over GPU counts and types: the plot and its table, shared by the page and a report.

import { h } from "./dom.js";
import { chance, count, days, fixed, percent, plainSeconds } from "./format.js";
import { scalingPlot } from "./plots.js";

/** `choose(point)` takes a point's GPUs into the question. */
export function scalingView(answer, choose) {
  const hasDays = answer.points.some((point) => point.days !== null);
  const cost = answer.points.some((point) => point.cost !== null);
  const heads = ["GPU", "GPUs", "step, s", "tokens/s", "speedup", "efficiency", "goodput", "fits", ...(hasDays ? ["days"] : []),
    ...(cost ? ["cost"] : []), "best plan"];
  const { fewest, fewest_by_gpu: ofTypes } = answer;
  const rows = answer.points.map((point) => point.best
    ? h("tr", null, h("th", { scope: "row" }, point.gpu), h("td", null, count(point.num_gpus)),
      h("td", null, plainSeconds(point.best.step_seconds)), h("td", null, count(point.tokens_per_second)),
      h("td", null, `${fixed(point.speedup, 2)}x`), h("td", null, percent(point.efficiency)),
      h("td", null, percent(point.goodput, 1)), h("td", null, chance(point.best.confidence.fit_probability)), hasDays ? h("td", null, point.days === null ? "" : days(point.days)) : null,
      cost ? h("td", null, point.cost === null ? "" : count(point.cost)) : null,
      h("td", { class: "words" }, h("code", { class: "plan" }, point.best.short)))
    : h("tr", { class: "quiet" }, h("th", { scope: "row" }, point.gpu), h("td", null, count(point.num_gpus)),
      h("td", { class: "words", colspan: heads.length - 2 }, point.why_not)));
  return h("div", { class: "scaling" },
    answer.deadline_days === null ? null : h("p", { class: "note" }, ofTypes.length
      ? `The fewest GPUs for ${answer.deadline_days} days: ${ofTypes.map((point) =>
        `${count(point.num_gpus)} x ${point.gpu}, ${days(point.days)} days`).join("; ")}`
      : `None of these counts trains within ${answer.deadline_days} days.`),
    scalingPlot(answer, choose),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Scaling" },
      h("table", { class: "figures" }, h("caption", { class: "unseen" }, "GPU counts and types"),
        h("thead", null, h("tr", null, heads.map((name) =>
          h("th", { scope: "col", class: name === "best plan" ? "words" : null }, name)))), h("tbody", null, rows))));
}
