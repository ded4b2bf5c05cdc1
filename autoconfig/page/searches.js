// Durable searches: start one, see the others, follow one live, open its answer, cancel it.

import { h, replace } from "./dom.js";
import { seconds } from "./format.js";
import { all, follow, get, post, remove } from "./service.js";

const SHOWN = 25;
const OPEN = ["queued", "running"];

export class Searches {
  /** `question()` gives the body to search; `open(search, answer)` shows an answer; `fail(problem)` an error. */
  constructor(question, open, fail) {
    this.question = question;
    this.open = open;
    this.fail = fail;
    this.stop = null;
    this.list = h("tbody");
    this.log = h("ol", { class: "log", "aria-live": "polite", "aria-label": "Events" });
    this.live = h("section", { class: "live", hidden: true });
    this.element = h("div", null,
      h("p", null, "A search runs in the service’s workers: it goes on when this page is closed, and its result stays. ",
        h("button", { type: "button", class: "main", onclick: () => this.start() }, "Search this question")),
      this.live,
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Searches" },
        h("table", { class: "figures searches" }, h("caption", null, "Latest searches"),
          h("thead", null, h("tr", null, ["created", "model", "GPUs", "state", "actions"].map((name) =>
            h("th", { scope: "col" }, name)))), this.list)));
  }

  async refresh() {
    try {
      const found = (await all("searches")).reverse().slice(0, SHOWN);
      replace(this.list, found.length ? found.map((search) => this.row(search))
        : h("tr", null, h("td", { class: "words quiet", colspan: 5 }, "none yet")));
    } catch (problem) {
      this.fail(problem);
    }
  }

  row(search) {
    const { question } = search;
    const model = typeof question.model === "string" ? question.model : "config.json";
    return h("tr", null, h("th", { scope: "row" }, new Date(search.created).toLocaleString("sv")), h("td", null, model),
      h("td", null, `${question.gpus ?? question.gpus_at_most} x ${question.gpu ?? "own cluster"}`), h("td", null, search.state),
      h("td", null,
        search.state === "done" ? h("button", { type: "button", onclick: () => this.result(search) }, "Open") : null,
        OPEN.includes(search.state) ? [h("button", { type: "button", onclick: () => this.follow(search) }, "Follow"), " ",
          h("button", { type: "button", onclick: () => this.cancel(search) }, "Cancel")] : null,
        search.problem ? h("span", { class: "bad" }, search.problem.detail) : null));
  }

  async start() {
    try {
      await this.follow(await post("/v1/searches", this.question()));
    } catch (problem) {
      this.fail(problem);
    }
  }

  /** Shows events as they come, until the search is over. */
  async follow(search) {
    if (this.stop) this.stop.abort();
    this.stop = new AbortController();
    const began = Date.now();
    const state = h("strong", { class: "search-state" }, search.state);
    const clock = h("span", { class: "quiet" });
    const open = h("button", { type: "button", hidden: true, onclick: () => this.result(search) }, "Open the answer");
    const cancel = h("button", { type: "button", onclick: () => this.cancel(search) }, "Cancel");
    replace(this.log);
    replace(this.live, h("header", null, h("h2", null, "Search ", h("code", null, search.id.slice(0, 8))), state, clock, open, cancel),
      this.log);
    this.live.hidden = false;
    const timer = setInterval(() => { clock.textContent = `${Math.round((Date.now() - began) / 1000)} s`; }, 1000);
    this.refresh();
    try {
      await follow(search.id, (event) => {
        if (event.kind === "state") state.textContent = event.data.state;
        this.log.append(h("li", null, h("span", { class: "kind" }, event.kind), " ", eventText(event.data)));
      }, this.stop.signal);
      const now = await get(`/v1/searches/${search.id}`);
      state.textContent = now.state;
      if (now.problem) this.log.append(h("li", { class: "bad" }, now.problem.detail));
      open.hidden = now.state !== "done";
    } catch (problem) {
      if (problem.name !== "AbortError") this.fail(problem);
    } finally {
      clearInterval(timer);
      cancel.hidden = true;
      this.refresh();
    }
  }

  async cancel(search) {
    try {
      await remove(`/v1/searches/${search.id}`);
      this.refresh();
    } catch (problem) {
      this.fail(problem);
    }
  }

  async result(search) {
    try {
      const answer = await get(`/v1/searches/${search.id}/plans`);
      if (answer.lines) this.measured(search, answer);
      else this.open(search, answer);
    } catch (problem) {
      this.fail(problem);
    }
  }

  /** What a search that measures found: every trial, measured beside predicted. */
  measured(search, study) {
    const time = (value) => h("td", null, value === null ? "" : seconds(value));
    replace(this.live, h("header", null, h("h2", null, "Search ", h("code", null, search.id.slice(0, 8)))),
      h("p", null, study.best ? ["Best measured: ", h("strong", null, study.best.plan), ", ", seconds(study.best.measured_s)]
        : "Nothing was measured", `; ${study.stopped}. The formulas put ${study.prior_best} first.`),
      h("table", { class: "figures" }, h("caption", null, "Trials"),
        h("thead", null, h("tr", null, ["plan", "predicted", "measured", "outcome"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, study.lines.map((line) => h("tr", null, h("th", { scope: "row" }, line.plan),
          time(line.predicted_s), time(line.measured_s), h("td", null, line.outcome.replaceAll("_", " ")))))));
    this.live.hidden = false;
    this.live.setAttribute("tabindex", "-1");
    this.live.focus();
  }
}

/** An event in words; of a state its name alone. */
function eventText(data) {
  if (Object.keys(data).length === 1 && data.state) return data.state;
  const { text, ...rest } = data;
  const more = Object.entries(rest).map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return [text, ...more].filter(Boolean).join(", ");
}
